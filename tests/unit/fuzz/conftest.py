"""Shared fixtures of the fuzz tests: a file in its own folder, and a reader that must return or raise HalfbyteError."""

import contextlib
from pathlib import Path

import pytest
from attacks.bounds import bounded, within

from halfbyte.errors import HalfbyteError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One folder for all examples of a module, because hypothesis calls a test many times."""
    return tmp_path_factory.mktemp("fuzzed")


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """Limit the memory of all examples of a module together: readers must not accumulate data."""
    with bounded(seconds=600, megabytes=700):
        yield


@pytest.fixture(scope="session")
def survives():
    """Call a reader: it must return, or raise a HalfbyteError of bounded length, quickly."""

    def call(reader, *given):
        with within(20), contextlib.suppress(HalfbyteError):
            return reader(*given)
        return None

    return call
