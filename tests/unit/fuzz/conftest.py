"""What fuzzers share: a file in a folder of its own, and the promise that a reader returns or says what is wrong."""

import contextlib
from pathlib import Path

import pytest
from attacks.bounds import bounded, within

from halfbyte.errors import HalfbyteError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One folder for all examples of a module: hypothesis calls a test many times."""
    return tmp_path_factory.mktemp("fuzzed")


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """All examples of a module together: no reader keeps what it read."""
    with bounded(seconds=600, megabytes=700):
        yield


@pytest.fixture(scope="session")
def survives():
    """Call a reader: it returns, or raises a HalfbyteError of a bounded length, soon."""

    def call(reader, *given):
        with within(20), contextlib.suppress(HalfbyteError):
            return reader(*given)
        return None

    return call
