"""A fake endpoint for the probes, and a way to run some of them on it."""

import pytest
from fake_openai import Fake, FakeServer
from right_answers import right_answers

from halfbyte.machine.retry import Backoff
from halfbyte.options.server_tests import ProbeOptions
from halfbyte.probe import client as client_module
from halfbyte.probe.run import probe_endpoint
from halfbyte.ui.console import Output


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("HALFBYTE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_module.Client, "backoff", Backoff(3, 0.01))


@pytest.fixture
def fake():
    return Fake(answers=right_answers())


@pytest.fixture
def server(fake):
    running = FakeServer(fake)
    yield running
    running.close()


@pytest.fixture
def probe(server, tmp_path):
    """Return a function that runs probes by name and returns their findings by name."""

    def run(*only: str, **asked):
        given = {
            "against": None, "skip": (), "context": "auto", "budget": None, "profile": "kimi", "seed": 0, "model": None,
            "timeout_s": 20.0, "folder": tmp_path / "probe",
        } | asked  # fmt: skip
        report = probe_endpoint(ProbeOptions(url=server.url, only=only, **given), Output(quiet=True))
        return {one.probe.name: one.finding for one in report.results}

    return run
