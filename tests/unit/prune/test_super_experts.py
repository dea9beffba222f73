"""Super experts: absolute values, absolute layer numbers, across layers or in one."""

import math

import numpy as np
import pytest
from expert_stats import stats

from halfbyte.errors import UsageError
from halfbyte.prune.saliency import super_experts, super_experts_of_layer


def layer(out):
    return stats(np.ones(len(out)), out=out).experts


def outputs(largest, experts=400):
    """All 1, except at the given places."""
    out = np.ones(experts)
    for expert, value in largest.items():
        out[expert] = value
    return layer(out)


def test_super_experts_across_layers_use_the_checkpoints_layer_numbers():
    # The public code names rows among the observed layers: here it would protect layers 0 and 2.
    found = super_experts({1: outputs({68: 900.0}), 2: outputs({}), 3: outputs({5: 100.0, 9: 91.0})})
    assert found == {1: (68,), 3: (5, 9)}


def test_super_experts_exceed_a_tenth_of_the_largest():
    assert super_experts({1: outputs({0: 1000.0, 1: 100.0, 2: 100.1})}) == {1: (0, 2)}


def test_at_most_one_expert_in_200_is_super():
    out = 1 + np.arange(400) / 400
    assert super_experts({4: layer(out)}) == {4: (398, 399)}
    assert super_experts({4: layer(np.ones(400))}) == {}


def test_super_experts_of_the_last_layers_count():
    layers = {number: outputs({}) for number in range(1, 60)}
    assert super_experts({**layers, 60: outputs({17: 50.0})}) == {60: (17,)}


def test_unmeasured_experts_do_not_change_the_threshold():
    out = np.zeros(400)
    out[:200] = 1 + np.arange(200) / 200
    assert super_experts({1: layer(out)}) == {1: (199,)}
    assert super_experts({1: layer(np.zeros(8))}) == super_experts({}) == {}


@pytest.mark.parametrize(
    ("largest", "found"),
    [
        ({}, ()),
        ({3: 9.9}, ()),  # stands out, but not tenfold
        ({3: 10.1}, (3,)),
        ({3: 10.0}, ()),
        ({3: 500.0, 4: 51.0, 5: 49.0}, (3, 4)),  # the last is under a tenth of the largest
        ({number: 20.0 for number in range(6)}, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_super_experts_within_one_layer(largest, found):
    assert super_experts_of_layer(1, outputs(largest, 16)) == found


def test_unmeasured_experts_do_not_lower_the_median():
    out = np.zeros(16)
    out[:4] = [1.0, 1.0, 1.0, 5.0]
    assert super_experts_of_layer(1, layer(out)) == super_experts_of_layer(1, layer(np.zeros(4))) == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_impossible_outputs_are_refused_with_layer_and_expert(bad):
    for judge in (lambda: super_experts({9: outputs({3: bad})}), lambda: super_experts_of_layer(9, outputs({3: bad}))):
        with pytest.raises(UsageError) as caught:
            judge()
        assert caught.value.where == "layer 9, expert 3"
