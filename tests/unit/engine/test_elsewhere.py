"""A Ray task that fetches its part of the source: errors and cleanup."""

import shutil
from types import SimpleNamespace

import pytest
from range_hub import REPO

from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.engine.backends.ray.worker import fetching
from halfbyte.engine.pipeline import plan
from halfbyte.errors import MachineError
from halfbyte.recipe.load import load_recipe


def test_a_full_disk_is_said_before_anything_comes(pico, serve_hub, tmp_path, monkeypatch):
    hub = serve_hub(pico())
    checkpoint = open_remote(f"hf://{REPO}", Cache(tmp_path / "cache", 10**9))
    made = plan(checkpoint, load_recipe("kimi-k2.6-mxfp4-wafer"))
    others = [shard.name for shard in made.shards[1:]]
    hub.forget()
    with fetching(made, others, "task"):
        pass
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with (
        pytest.raises(MachineError, match=r"the cache .* of a task needs .*free some space"),
        fetching(made, others, "t"),
    ):
        pytest.fail("it began")
    assert not hub.asked
    assert not list(checkpoint.remote.folder.glob(".tasks/*"))
