"""Token coverage per expert, counted as the scales are chosen."""

import numpy as np
import pytest

from halfbyte.calibrate.report import report
from halfbyte.calibrate.stats import ExpertStats, LayerStats
from halfbyte.engine.activation_scales import needs_backstop
from halfbyte.families.linears import StoredLinear
from halfbyte.recipe.decisions import InputScale


def layer(*seen, silent=()):
    """Experts with these token counts; those in `silent` output only zeros."""
    stats = ExpertStats.empty(len(seen), 1)
    stats.seen[:] = seen
    stats.input_amax[:] = stats.down_amax[:] = np.sign(stats.seen)
    stats.down_amax[list(silent)] = 0
    return LayerStats({}, stats)


def rule(min_tokens):
    return InputScale(per="expert", min_tokens=min_tokens, backstop="modelopt")


def test_each_layer_and_the_whole():
    layers = {0: LayerStats({"mlp.up_proj": 1.0}), 2: layer(0, 7, 3, 20), 1: layer(5, 5, 9)}
    found = report(layers, rule(1))
    assert [(one.layer, one.fewest, one.median, one.unseen, one.backstopped) for one in found.layers] == [
        (1, 5, 5.0, (), ()),
        (2, 0, 5.0, (0,), (0,)),
    ]
    assert found.summary() == {
        "moe_layers": 2,
        "fewest_tokens": 0,
        "median_tokens": 5.0,
        "unseen_experts": 1,
        "backstopped_experts": 1,
    }
    assert found.line() == "at least 0 tokens per expert (median 5), 1 without tokens, 1 with the backstop scale"


@pytest.mark.parametrize(("fewest", "helped"), [(1, (0,)), (3, (0,)), (4, (0, 2)), (8, (0, 1, 2)), (21, (0, 1, 2, 3))])
def test_too_few_are_those_below_the_limit(fewest, helped):
    assert report({1: layer(0, 7, 3, 20)}, rule(fewest)).layers[0].backstopped == helped


def test_an_expert_that_made_only_zeros_is_helped():
    found = report({1: layer(4, 4, silent=[1])}, rule(1)).layers[0]
    assert (found.unseen, found.backstopped) == ((), (1,))


def test_per_layer_nobody_needs_help():
    for given in (InputScale(per="layer"), None):
        found = report({1: layer(0, 7)}, given).layers[0]
        assert (found.unseen, found.backstopped) == ((0,), ())


def linear(expert, projection):
    return StoredLinear("x", "routed_experts", 1, expert, projection, "bf16", (1, 1), 0, {})


def test_it_counts_those_whom_the_scales_help():
    stats = layer(0, 7, 3, 20, silent=[1])
    assert stats.experts is not None
    for fewest in (1, 4, 10):
        helped = tuple(
            expert
            for expert in range(4)
            if any(needs_backstop(stats.experts, linear(expert, p), rule(fewest)) for p in ("up", "down"))
        )
        assert report({1: stats}, rule(fewest)).layers[0].backstopped == helped


def test_a_model_without_experts():
    found = report({0: LayerStats({"mlp.up_proj": 1.0})}, rule(1))
    assert found.line() == "no routed experts"
    assert found.summary()["fewest_tokens"] is None
