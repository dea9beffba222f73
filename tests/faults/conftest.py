"""Shared fixtures of fault tests: a process to fork from, a small checkpoint, and a count of injected faults."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "flow"))

from calibratable import small, texts
from commands import words
from injected import Forking, built
from wreck import contents


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    found = built(tmp_path_factory.mktemp("library"))
    if found is None:
        assert not os.environ.get("CI"), "faults are injected by a library, for which there is no compiler here"
        pytest.skip("no compiler for the library that injects faults")
    return found


@pytest.fixture(scope="session")
def forking(tmp_path_factory, library):
    started = Forking(tmp_path_factory.mktemp("forking"), library)
    yield started
    started.close()


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A source that can be calibrated, and its data."""
    folder = tmp_path_factory.mktemp("place")
    small(folder / "source", layers=2)
    texts(folder / "texts.jsonl")
    return folder


@pytest.fixture(scope="session")
def undisturbed(forking, place, tmp_path_factory):
    """The output of each command without a fault."""
    known = {}

    def get(name):
        if name not in known:
            out = tmp_path_factory.mktemp("undisturbed") / "out"
            ended = forking.run(*words(name, place, out))
            assert ended.code == 0, ended.words
            known[name] = contents(out)
        return known[name]

    return get
