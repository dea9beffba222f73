"""Runs that Ray does not support are rejected before anything is written."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pico import write_pico
from range_hub import REPO

from halfbyte.checkpoint.remote.address import Cache
from halfbyte.checkpoint.remote.mirror import open_remote
from halfbyte.engine.backends.local import Resources
from halfbyte.engine.backends.ray.remote_source import refuse_small_share, remote_source
from halfbyte.engine.backends.ray.support import refuse_pushing, refuse_remote_calibration, refuse_unsupported
from halfbyte.engine.pipeline import plan
from halfbyte.errors import UsageError
from halfbyte.recipe.load import load_recipe

RESOURCES = Resources(ray="local")


def planned(recipe="kimi-k2.6-mxfp4-wafer", remote=None):
    return SimpleNamespace(recipe=load_recipe(recipe), checkpoint=SimpleNamespace(remote=remote))


def test_what_can_be_spread_is():
    refuse_unsupported(planned(), RESOURCES)


@pytest.mark.parametrize(
    ("made", "resources", "said"),
    [
        (planned(), replace(RESOURCES, device="cuda"), "cannot be combined with --device cuda"),
        (planned("kimi-k2.6-nvfp4-compensated"), RESOURCES, "--ray does not support GPTQ"),
    ],
)
def test_what_cannot_is_said(made, resources, said):
    with pytest.raises(UsageError, match=said):
        refuse_unsupported(made, resources)


def test_measuring_far_away_is_for_one_machine():
    refuse_remote_calibration(planned())
    with pytest.raises(UsageError, match="would fetch the complete remote source"):
        refuse_remote_calibration(planned(remote=object()))


def test_the_tasks_of_a_machine_share_what_it_may_hold(serve_hub, tmp_path):
    serve_hub(write_pico(tmp_path / "source"))
    made = plan(open_remote(f"hf://{REPO}", Cache(tmp_path / "cache", 300_000)), load_recipe("kimi-k2.6-mxfp4-wafer"))
    for tasks, fits in ((4, True), (5, False)):  # the largest shard has 71,456 bytes
        source = remote_source(made.checkpoint.remote, tasks)
        assert source.limit_nbytes == 300_000 // tasks
        assert Path(source.cache) == tmp_path / "cache"
        with nullcontext() if fits else pytest.raises(UsageError, match="5 tasks run concurrently on a node") as said:
            refuse_small_share(made, (), source, tasks)
    assert "use --cache 1MB or more" in said.value.fix


def test_pushing_is_for_one_machine():
    with pytest.raises(UsageError, match="--push cannot be combined with --ray"):
        refuse_pushing()
