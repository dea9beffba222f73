"""What cannot be spread over machines is said before anything is written."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pico import write_pico
from range_hub import REPO

from halfbyte.distributed.asked import refuse_measuring_elsewhere, refuse_pushing, refuse_unspreadable
from halfbyte.distributed.elsewhere import elsewhere_of, refuse_small_share
from halfbyte.errors import UsageError
from halfbyte.pipeline import plan
from halfbyte.recipe.load import load_recipe
from halfbyte.run import Means
from halfbyte.source.remote.cache import Cache
from halfbyte.source.remote.mirror import open_remote

MEANS = Means(ray="local")


def planned(recipe="kimi-k2.6-mxfp4-wafer", remote=None):
    return SimpleNamespace(recipe=load_recipe(recipe), checkpoint=SimpleNamespace(remote=remote))


def test_what_can_be_spread_is():
    refuse_unspreadable(planned(), MEANS)


@pytest.mark.parametrize(
    ("made", "means", "said"),
    [
        (planned(), replace(MEANS, device="cuda"), "--device cuda is a GPU's"),
        (planned("kimi-k2.6-nvfp4-compensated"), MEANS, "compensated weights"),
    ],
)
def test_what_cannot_is_said(made, means, said):
    with pytest.raises(UsageError, match=said):
        refuse_unspreadable(made, means)


def test_measuring_far_away_is_for_one_machine():
    refuse_measuring_elsewhere(planned())
    with pytest.raises(UsageError, match="would fetch the whole source"):
        refuse_measuring_elsewhere(planned(remote=object()))


def test_the_tasks_of_a_machine_share_what_it_may_hold(serve_hub, tmp_path):
    serve_hub(write_pico(tmp_path / "source"))
    made = plan(open_remote(f"hf://{REPO}", Cache(tmp_path / "cache", 300_000)), load_recipe("kimi-k2.6-mxfp4-wafer"))
    for tasks, fits in ((4, True), (5, False)):  # the largest shard has 71,456 bytes
        source = elsewhere_of(made.checkpoint.remote, tasks)
        assert source.limit_nbytes == 300_000 // tasks
        assert Path(source.cache) == tmp_path / "cache"
        with nullcontext() if fits else pytest.raises(UsageError, match="5 tasks run on a machine at a time") as said:
            refuse_small_share(made, (), source, tasks)
    assert "give --cache 1MB or more" in said.value.fix


def test_pushing_is_for_one_machine():
    with pytest.raises(UsageError, match="--push sends what this machine makes"):
        refuse_pushing()
