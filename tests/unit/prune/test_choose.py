"""Expert selection: worked examples, required properties, and rejected input."""

import itertools

import numpy as np
import pytest
from expert_stats import random_stats, router, rule, stats
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.errors import UsageError
from halfbyte.prune.build_plan import choose, choose_layer, gather, spread
from halfbyte.prune.selection import restore

DOMAINS = ("code", "prose")


def chosen(layers, said, shape, domains=("all",), **more):
    return choose(layers, domains, said, shape, layers_expected=sorted(layers), **more)


def kept(found, said, shape, domains=("all",)):
    return chosen({3: found}, said, shape, domains).kept()[3]


def test_a_worked_example_of_reap():
    # Means of g n: 2, 3, 1, 3, 0.5. The lowest go, the others stay in ascending order.
    found = stats([10, 1, 4, 2, 100], gn=[20, 3, 4, 6, 50])
    assert [kept(found, rule(count), router(5)) for count in (1, 2, 3, 4, 5)] == [
        (1,),
        (1, 3),
        (0, 1, 3),
        (0, 1, 2, 3),
        (0, 1, 2, 3, 4),
    ]
    assert kept(found, rule(2, method="frequency"), router(5)) == (0, 4)
    assert kept(found, rule(2, method="weighted_ean"), router(5)) == (0, 4)


def test_of_equal_scores_the_lower_number_is_kept():
    assert kept(stats([1] * 6), rule(4), router(6)) == (0, 1, 2, 3)
    assert kept(stats([1] * 6, gn=[1, 2, 1, 2, 1, 2]), rule(4), router(6)) == (0, 1, 3, 5)
    assert kept(stats([1] * 384), rule(192), router(384)) == tuple(range(192))


def test_every_group_keeps_the_same_number():
    scores = [9, 8, 7, 6, 1, 2, 3, 4]
    found = stats([1] * 8, gn=scores)
    assert kept(found, rule(4), router(8)) == (0, 1, 2, 3)
    assert kept(found, rule(4), router(8, 2, 2, 1)) == (0, 1, 6, 7)
    assert kept(found, rule(4, select="max_min"), router(8, 2, 2, 1)) == (0, 1, 6, 7)


def test_unobserved_experts_are_kept_with_a_reason():
    found = stats([0, 5, 5, 2, 5], gn=[0, 5, 10, 100, 15])
    choice = chosen({3: found}, rule(3, min_tokens=3), router(5)).layers[3]
    assert choice.kept == (0, 3, 4)
    assert choice.scores == (None, 1.0, 2.0, None, 3.0)
    assert choice.reasons == {0: "unobserved", 3: "unobserved"}
    assert kept(found, rule(3, min_tokens=0), router(5)) == (2, 3, 4)  # as the public code: no tokens, no worth


def test_super_experts_are_kept_across_layers_and_in_one():
    out = np.ones(200)
    out[7] = 500
    quiet, loud = stats([1] * 200, gn=range(200)), stats([1] * 200, gn=range(200), out=out)
    plan = chosen({1: quiet, 2: loud}, rule(100, protect=True), router(200))
    assert plan.layers[1].reasons == {}
    assert plan.layers[2].reasons == {7: "super expert"}
    assert plan.layers[2].kept == (7, *range(101, 200))
    assert plan.coverage["super_experts"] == "across layers"
    assert choose_layer(2, loud, ["all"], rule(100, protect=True), router(200)) == plan.layers[2]
    assert 7 not in chosen({2: loud}, rule(100), router(200)).layers[2].kept


def test_the_two_rules_for_super_experts_differ():
    """A layer alone cannot know that another has outputs a hundred times larger."""
    middling, huge = np.ones(200), np.ones(200)
    middling[3], huge[4] = 20, 2000
    layers = {1: stats([1] * 200, out=middling), 2: stats([1] * 200, out=huge)}
    said = rule(100, protect=True)
    plan = chosen(layers, said, router(200))
    assert [plan.layers[layer].reasons for layer in (1, 2)] == [{}, {4: "super expert"}]
    choices = {layer: choose_layer(layer, layers[layer], ["all"], said, router(200)) for layer in layers}
    assert [choices[layer].reasons for layer in (1, 2)] == [{3: "super expert"}, {4: "super expert"}]
    gathered = gather(choices, layers, ["all"], said, router(200))
    assert gathered.coverage["super_experts"] == "in each layer"
    assert gathered.kept() == {layer: choice.kept for layer, choice in choices.items()}


def test_without_super_experts_layer_by_layer_equals_all_at_once():
    layers = {layer: random_stats(layer) for layer in (2, 5, 9)}
    for select in ("mean", "max_min"):
        said = rule(8, select=select)
        whole = chosen(layers, said, router(16), "abc")
        choices = {layer: choose_layer(layer, layers[layer], "abc", said, router(16)) for layer in layers}
        alone = gather(choices, layers, "abc", said, router(16))
        assert (alone.layers, alone.coverage) == (whole.layers, {**whole.coverage, "super_experts": None})


def test_more_protected_experts_than_the_count_are_refused():
    found = stats([0, 0, 0, 5, 5, 5, 5, 5])
    with pytest.raises(UsageError) as caught:
        kept(found, rule(2), router(8))
    assert caught.value.what == "3 experts must be kept (3 unobserved), but only 2 can be"
    assert caught.value.where == "layer 3"
    assert caught.value.fix == "calibrate on more text, keep 3 or more, or lower prune.min_tokens"
    with pytest.raises(UsageError) as caught:
        kept(found, rule(4), router(8, 2, 2, 1))
    assert caught.value.where == "layer 3, group 0"
    assert caught.value.fix == "calibrate on more text, keep 6 or more, or lower prune.min_tokens"
    out = [50, 50, 50, 1, 1, 1, 1, 1, 1]
    with pytest.raises(UsageError, match="3 super expert"):
        choose_layer(1, stats([1] * 9, out=out), ["all"], rule(2, protect=True), router(9))


def test_layers_that_are_missing_or_dense():
    layers = {1: random_stats(1), 2: LayerStats({})}
    with pytest.raises(UsageError, match="these statistics lack layer 3"):
        choose(layers, "abc", rule(8), router(16), layers_expected=[1, 3])
    with pytest.raises(UsageError, match="the statistics have no expert data for this MoE layer"):
        choose(layers, "abc", rule(8), router(16), layers_expected=[1, 2])
    assert sorted(choose(layers, "abc", rule(8), router(16), layers_expected=[1]).layers) == [1]


def test_max_min_keeps_the_domain_that_the_mean_drops():
    found = stats([[9, 1]] * 4 + [[1, 9]] * 4, gn=[[900, 1]] * 4 + [[1, 90]] * 4)
    said = rule(4, method="weighted_ean")
    mean = chosen({1: found}, said, router(8), DOMAINS)
    fair = chosen({1: found}, rule(4, method="weighted_ean", select="max_min"), router(8), DOMAINS)
    assert mean.kept()[1] == (0, 1, 2, 3)
    assert fair.kept()[1] == (0, 1, 4, 5)
    assert mean.coverage["domains"]["prose"]["worst"] == 4 / 360
    assert fair.coverage["domains"]["prose"]["worst"] == pytest.approx(182 / 360, abs=1e-15)
    assert fair.coverage["layers"]["1"]["bound"] >= fair.coverage["domains"]["code"]["worst"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), select=st.sampled_from(["mean", "max_min"]))
def test_a_layers_scale_changes_nothing(seed, scale, select):
    """routed_scaling_factor is such a scale. Powers of two are exact; others could move ties, which whole numbers of
    this size over counts do not come close enough to."""
    found = random_stats(seed)
    scaled = merge([found])
    scaled.experts.sums["gn"] = found.experts.sums["gn"] * 2.0 ** round(np.log2(scale))
    said = rule(8, select=select)
    assert kept(found, said, router(16), "abc") == kept(scaled, said, router(16), "abc")
    scaled.experts.sums["gn"] = found.experts.sums["gn"] * 2.827
    assert kept(found, rule(8), router(16), "abc") == kept(scaled, rule(8), router(16), "abc")


@settings(max_examples=40, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=4), select=st.sampled_from(["mean", "max_min"]))
def test_merged_statistics_choose_like_the_whole(seeds, select):
    parts = [random_stats(seed) for seed in seeds]
    sums = {name: sum(part.experts.sums[name] for part in parts) for name in ("gn", "n", "n2", "g2n", "g2n2")}
    out = np.max([part.experts.out_amax for part in parts], axis=0)
    whole = stats(sum(part.experts.count for part in parts), out=out, **sums)
    said = rule(8, select=select, protect=True)
    shuffled = merge(list(reversed(parts)))
    assert chosen({1: merge(parts)}, said, router(16), "abc") == chosen({1: whole}, said, router(16), "abc")
    assert chosen({1: shuffled}, said, router(16), "abc") == chosen({1: whole}, said, router(16), "abc")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), groups=st.sampled_from([1, 2, 4]), method=st.sampled_from(["reap", "ean", "msan"]))
def test_larger_sets_contain_smaller_ones_and_restoring_equals_choosing_more(seed, groups, method):
    layers = {layer: random_stats(seed + layer) for layer in (1, 2)}
    shape = router(16, 2, groups, groups)
    plans = {count: chosen(layers, rule(count, method=method), shape, "abc") for count in (8, 12, 16)}
    for layer in layers:
        assert set(plans[8].kept()[layer]) < set(plans[12].kept()[layer]) < set(plans[16].kept()[layer])
    assert restore(plans[8], 4).kept() == plans[12].kept()
    assert restore(restore(plans[8], 4), 4).kept() == plans[16].kept()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    select=st.sampled_from(["mean", "max_min"]),
    blind=st.sets(st.integers(0, 15), max_size=3),
)
def test_every_choice_is_valid(seed, select, blind):
    found = random_stats(seed)
    found.experts.count[list(blind)] = 0
    choice = choose_layer(1, found, "abc", rule(8, select=select), router(16, 2))
    assert len(choice.kept) == 8
    assert list(choice.kept) == sorted(set(choice.kept))
    assert blind <= set(choice.kept)
    assert set(choice.reasons) == blind
    if select == "mean":
        stay = [choice.scores[expert] for expert in choice.kept if expert not in blind]
        go = [choice.scores[expert] for expert in range(16) if expert not in choice.kept]
        assert min(stay) >= max(go)


def test_max_min_is_never_worse_than_mean_in_any_layer():
    layers = {layer: random_stats(layer, 24, 4) for layer in range(1, 20)}
    worst = {}
    for select in ("mean", "max_min"):
        plan = chosen(layers, rule(12, select=select, protect=True), router(24), "abcd")
        worst[select] = [min(layer["covered"].values()) for layer in plan.coverage["layers"].values()]
    pairs = list(zip(worst["mean"], worst["max_min"], strict=True))
    assert all(mean <= fair for mean, fair in pairs)
    assert sum(mean < fair for mean, fair in pairs) > 10


# --- different numbers in different layers ---


def brute_spread(layers, keep, least):
    """Return the largest sum of shares over all spreads with the same number of experts."""
    totals = [sorted((value / sum(values) for value in values), reverse=True) for values in layers]
    counts = itertools.product(range(least, len(layers[0]) + 1), repeat=len(layers))
    return max(
        sum(sum(total[:count]) for total, count in zip(totals, spread, strict=True))
        for spread in counts
        if sum(spread) == keep * len(layers)
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_water_filling_is_optimal(seed):
    random = np.random.default_rng(seed)
    values = [random.lognormal(0, sigma, 6) for sigma in (0.2, 1, 2)]
    layers = {number: stats([1] * 6, gn=scores) for number, scores in enumerate(values)}
    found = spread(layers, ["all"], rule(3), router(6, 2), layers_expected=layers)
    assert sum(found.counts.values()) == 9
    assert min(found.counts.values()) >= 2
    assert sum(1 - share for share in found.dropped.values()) == pytest.approx(brute_spread(values, 3, 2), abs=1e-12)
    assert sum(found.dropped.values()) <= sum(found.dropped_uniform.values()) + 1e-12


def test_a_worked_example_of_water_filling():
    flat, steep = stats([1] * 8, gn=[1] * 8), stats([1] * 8, gn=[64, 32, 16, 8, 4, 2, 1, 1])
    found = spread({1: flat, 2: steep}, ["all"], rule(4), router(8), layers_expected=[1, 2])
    # A flat layer's expert is an eighth of it, as the third of the steep one: of equals, the lower layer's stay.
    assert found.counts == {1: 6, 2: 2}
    assert found.dropped == {1: 2 / 8, 2: 32 / 128}
    assert found.dropped_uniform == {1: 4 / 8, 2: 8 / 128}
    assert (
        found.line()
        == "keeping 2 to 6 experts per layer drops 25.0% of the scores on average; 4 in every layer would drop 28.1%"
    )
    even = spread({1: flat, 2: steep}, ["all"], rule(4), router(8), layers_expected=[1, 2], step=4)
    assert even.counts == {1: 4, 2: 4}
    plan = chosen({1: flat, 2: steep}, rule(4), router(8), counts=found.counts)
    assert plan.counts() == {1: 6, 2: 2}
    assert plan.non_uniform
    assert not chosen({1: flat, 2: steep}, rule(4), router(8)).non_uniform
    assert found.as_dict()["counts"] == {"1": 6, "2": 2}


def test_budgets_respect_groups_steps_and_protected_experts():
    layers = {layer: random_stats(layer) for layer in (1, 2, 3)}
    layers[2].experts.count[:3] = 0  # all in the first of four groups, so each group keeps three
    found = spread(layers, "abc", rule(12), router(16, 4, 4, 2), layers_expected=layers)
    assert all(count % 4 == 0 for count in found.counts.values())
    assert found.counts[2] >= 12
    assert sum(found.counts.values()) == 36
    plan = chosen(layers, rule(12), router(16, 4, 4, 2), "abc", counts=found.counts)
    assert {0, 1, 2} <= set(plan.kept()[2])
    with pytest.raises(UsageError, match="blocks of 5"):
        spread(layers, "abc", rule(8), router(16), layers_expected=layers, step=5)
    for layer in layers.values():
        layer.experts.count[:9] = 0
    with pytest.raises(UsageError, match="the layers need at least 27 experts, but only 24 would be kept"):
        spread(layers, "abc", rule(8), router(16), layers_expected=layers)


def test_counts_per_layer_are_checked():
    with pytest.raises(UsageError, match="2 experts are too few") as caught:
        chosen({1: random_stats(1)}, rule(8), router(16, 4), "abc", counts={1: 2})
    assert caught.value.where == "layer 1"
