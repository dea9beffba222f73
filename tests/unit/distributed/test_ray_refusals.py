"""What cannot be spread over machines is said before anything is written."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from halfbyte.distributed.asked import refuse_pushing, refuse_unspreadable
from halfbyte.errors import UsageError
from halfbyte.recipe.load import load_recipe
from halfbyte.run import Means

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
        (planned(remote=object()), MEANS, "read the source from storage that they share"),
    ],
)
def test_what_cannot_is_said(made, means, said):
    with pytest.raises(UsageError, match=said):
        refuse_unspreadable(made, means)


def test_pushing_is_for_one_machine():
    with pytest.raises(UsageError, match="--push sends what this machine makes"):
        refuse_pushing()
