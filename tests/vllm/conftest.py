"""Tests that need the package vLLM in the test environment, and start no server.

Every test in this folder gets the marker `vllm`. `make test` installs vLLM and sets HALFBYTE_REQUIRE_VLLM=1: then a
missing vLLM is a failure. Otherwise these tests are skipped. vLLM is imported inside tests and fixtures, never at the
top of a file, and if possible in a separate process (`in_vllm`): its import takes 10 to 20 seconds and changes
environment variables, logging and torch's settings for everything that runs after it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from halfbyte.audit.vllm_check import ENVIRONMENT

HERE = Path(__file__).parent
ABSENT = "no vLLM in this environment: `make vllm` installs it, `make test VLLM=no` leaves these tests out"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder; the hook sees every test of the run."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session", autouse=True)
def vllm_is_here() -> None:
    """Skip without vLLM, or fail if it is required."""
    found = find_spec("vllm")
    if found is not None and found.origin is not None:  # without an origin it is this folder, which is on the path
        return
    if os.environ.get("HALFBYTE_REQUIRE_VLLM") == "1":
        pytest.fail(ABSENT)
    pytest.skip(ABSENT)


@pytest.fixture(scope="session")
def in_vllm():
    """Return a function that runs `python ARGUMENTS...` in a separate process and returns its output."""

    def run(*arguments: object, timeout_s: int = 1800) -> str:
        command = [sys.executable, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**ENVIRONMENT, **os.environ}, timeout=timeout_s
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr[-6000:]}"
        return done.stdout

    return run
