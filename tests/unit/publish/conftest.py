"""Folders that are ready to publish, built once and copied."""

import time

import pytest
from fake_hub import TOKEN, FakeHub
from huggingface_hub import constants
from huggingface_hub.utils import close_session
from release_folder import copy_folder, make_folder, skip_probes

from halfbyte.publish.provenance import write_provenance


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """Return a source and its output, which a test may modify."""
    skip_probes(monkeypatch)
    return copy_folder(made, tmp_path)


@pytest.fixture
def out(folder):
    return folder[1]


@pytest.fixture
def source(folder):
    return folder[0]


@pytest.fixture
def ready(folder):
    """Return an output that is ready to publish."""
    source, out = folder
    write_provenance(out, source)
    return out


@pytest.fixture
def hub(monkeypatch):
    """Point the installed huggingface_hub at a fake Hub, with short timeouts."""
    fake = FakeHub()
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    real = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: real(min(seconds, 0.5 if seconds == 0.5 else 0.02)))
    yield fake
    fake.close()
    close_session()
