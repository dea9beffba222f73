"""Shared fixtures. pytest also adds this folder to the path because of this file, so that tests can import pico."""

import os
import signal
import threading

import pytest
from exhaustive import is_exhaustive
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from immediate_failures import ImmediateFailures
from pico import write_pico
from tally import Tally

from halfbyte.cli import main as cli
from halfbyte.machine.library_settings import limit_onednn

limit_onednn()  # before any test computes a product

# Shells without job control start background jobs with SIGINT ignored, which the processes under test would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine draws slowly; how long a draw takes says nothing about the code under test. The suite draws the same
# examples every time, so that it fails for a change and not by chance; `make fuzz` looks for new ones.
calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", calm, derandomize=True, database=None)
settings.register_profile("search", calm, max_examples=int(os.environ.get("HALFBYTE_EXAMPLES", "2000")))
settings.load_profile("search" if "HALFBYTE_EXAMPLES" in os.environ else "same")
if "HALFBYTE_EXAMPLES" not in os.environ and hasattr(providers, "_get_local_constants"):
    # It also draws constants from the source of all modules that are imported by then: other tests would decide.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config):
    config.pluginmanager.register(ImmediateFailures(config))


def pytest_collection_modifyitems(items):
    for item in items:
        if is_exhaustive(item.nodeid):
            item.add_marker(pytest.mark.exhaustive)
        if item.get_closest_marker("slow") or item.get_closest_marker("live"):
            item.add_marker(pytest.mark.timeout(0))  # hours are nothing there


@pytest.fixture
def pico(tmp_path):
    """Write a small checkpoint of a kind into a new folder and return the folder."""

    def write(kind="int4-k2.6", **shape):
        return write_pico(tmp_path / kind, kind, **shape)

    return write


@pytest.fixture
def serve_hub(monkeypatch, tmp_path):
    """Serve a folder as a Hub repository for huggingface_hub; the cache is a new folder."""
    from range_hub import RangeHub, speak_to

    served = []

    def serve(folder):
        hub = RangeHub(folder)
        served.append(hub)
        speak_to(hub, monkeypatch)
        monkeypatch.setenv("HALFBYTE_CACHE", str(tmp_path / "cache"))
        return hub

    yield serve
    for hub in served:
        hub.close()


@pytest.fixture
def halfbyte(capsys):
    """Run a command; return its exit code, stdout and stderr."""

    def run(*argv):
        code = cli.run([str(argument) for argument in argv])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def tally(request):
    """Count faults; `python tests/faults/table.py` sums the counts of all tests."""
    return Tally(request.node.user_properties)
