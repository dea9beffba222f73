"""Folders that are ready to be published, made once and copied."""

import pytest
from release_folder import copy_folder, make_folder, skip_probes


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """Return a source and its output, which a test may change."""
    skip_probes(monkeypatch)
    return copy_folder(made, tmp_path)


@pytest.fixture
def out(folder):
    return folder[1]


@pytest.fixture
def source(folder):
    return folder[0]
