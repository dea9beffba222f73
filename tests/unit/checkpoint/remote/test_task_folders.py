"""Folders of fetching tasks: leftovers of killed tasks are removed, used ones are kept."""

import os

import pytest

from halfbyte.checkpoint.output_folder import locked_cache
from halfbyte.checkpoint.remote.download import PARTS
from halfbyte.checkpoint.remote.shard_cache import TASKS, sweep


@pytest.fixture
def task(tmp_path):
    def call(name):
        folder = tmp_path / TASKS / name
        (folder / PARTS).mkdir(parents=True)
        (folder / PARTS / "model.safetensors").write_bytes(b"half")
        return folder

    return call


def test_folders_of_dead_tasks_are_removed(tmp_path, task):
    running, killed, early = task("running"), task("killed"), tmp_path / TASKS / "early"
    early.mkdir()  # killed before it had a lock
    with locked_cache(running / PARTS):
        sweep(tmp_path)
        assert (running / PARTS / "model.safetensors").read_bytes() == b"half"
    assert not killed.exists()
    assert not early.exists()
    sweep(tmp_path)
    assert not running.exists()


def test_a_task_folder_that_cannot_be_opened_is_kept(tmp_path, task, monkeypatch):
    running, opened = task("running"), os.open
    refused = []

    def few(path, *more, **options):  # as with a low `ulimit -n`, or in a folder of another user
        if str(path).endswith(PARTS):
            refused.append(path)
            raise OSError(24, "Too many open files")
        return opened(path, *more, **options)

    monkeypatch.setattr(os, "open", few)
    sweep(tmp_path)
    assert refused == [running / PARTS]
    assert (running / PARTS / "model.safetensors").is_file()


def test_sweeping_creates_no_folder(tmp_path):
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())
