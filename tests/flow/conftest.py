"""Fixtures for tests of complete commands; `pico` is in the parent folder."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from pico import write_pico


@pytest.fixture(scope="module")
def pristine_kinds(tmp_path_factory):
    """One checkpoint of each requested kind, written once; tests damage copies."""
    written = {}

    def get(kind):
        if kind not in written:
            written[kind] = write_pico(tmp_path_factory.mktemp("pristine") / kind, kind)
        return written[kind]

    return get


@pytest.fixture
def bad_source(pristine_kinds, tmp_path):
    """A checkpoint to damage."""
    return shutil.copytree(pristine_kinds("int4-k2.6"), tmp_path / "source")
