"""Expert saliency: every criterion by hand, blends, and statistics without information."""

import math
from typing import get_args

import numpy as np
import pytest
from expert_stats import random_stats, router, rule, stats
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.options.convert import PruneMethod
from halfbyte.prune.saliency import CRITERIA, layer_scores

# One expert that had the tokens (g, n) = (0.5, 4), (0.25, 8) of one domain and (1, 2) of another.
SUMS = {
    "gn": [[4.0, 2.0]],
    "n": [[12.0, 2.0]],
    "n2": [[80.0, 4.0]],
    "g2n": [[1.5, 2.0]],
    "g2n2": [[8.0, 4.0]],
    "pn": [[6.0, 1.0]],
    "pn_public": [[9.0, 3.0]],
    "count_public": [[3.0, 1.0]],
}
BY_HAND = {  # all tokens alike, then the first domain alone
    "reap": (6 / 3, 4 / 2),
    "reap_softmax": (7 / 3, 6 / 2),
    "reap_public": (12 / 4, 9 / 3),
    "reap_g2": (3.5 / 3, 1.5 / 2),
    "reap_l2": (12 / 3, 8 / 2),
    "frequency": (3, 2),
    "ean": (14, 12),
    "weighted_ean": (6, 4),
    "man": (14 / 3, 12 / 2),
    "msan": (84 / 3, 80 / 2),
}


def scores(found, said, domains=("code", "prose"), experts=1):
    return layer_scores(7, found, domains, said, router(experts))


@pytest.mark.parametrize("method", CRITERIA)
def test_every_criterion_matches_its_definition(method):
    found = scores(stats([[2, 1]], **SUMS), rule(1, method=method))
    assert (found.blended[0], found.by_domain[0, 0]) == BY_HAND[method]


def test_every_method_of_a_recipe_is_defined():
    assert set(CRITERIA) == set(BY_HAND) == set(get_args(PruneMethod))


def test_a_blend_weights_tokens_before_division():
    found = stats([[2, 1]], **SUMS)
    assert scores(found, rule(1, blend={"code": 1, "prose": 3})).blended[0] == (4 + 3 * 2) / (2 + 3 * 1)
    assert scores(found, rule(1, blend={"prose": 5, "code": 0})).blended[0] == 2
    assert scores(found, rule(1, method="ean", blend={"code": 0.5, "prose": 3})).blended[0] == 12
    assert scores(found, rule(1, blend={"code": 2, "prose": 2})).blended[0] == BY_HAND["reap"][0]


@pytest.mark.parametrize("blend", [{"code": 1}, {"code": 1, "prose": 1, "verse": 1}])
def test_a_blend_with_missing_or_unknown_domains_is_refused(blend):
    with pytest.raises(UsageError) as caught:
        scores(stats([[2, 1]], **SUMS), rule(1, blend=blend))
    word = "no domain 'verse'" if len(blend) > 2 else "'blend' lacks 'prose'"
    assert word in caught.value.what
    assert caught.value.fix == "give each domain a weight: code, prose"


def test_an_expert_without_tokens_has_the_score_0_and_is_not_observed():
    found = scores(stats([[0, 0], [0, 1], [3, 3]]), rule(1, min_tokens=2), experts=3)
    assert found.blended.tolist() == [0, 1, 1]
    assert found.observed.tolist() == [False, False, True]
    assert scores(stats([[0, 0]]), rule(1, min_tokens=0)).observed.tolist() == [True]


def test_tokens_of_a_domain_with_weight_0_are_not_observations():
    found = scores(stats([[9, 0], [0, 1]]), rule(1, blend={"code": 0, "prose": 1}), experts=2)
    assert found.observed.tolist() == [False, True]


def test_a_criterion_counts_the_tokens_of_its_own_selection():
    found = stats([[5, 5]], pn_public=[[0.0, 0.0]], count_public=[[0.0, 0.0]])
    assert not scores(found, rule(1, method="reap_public")).observed[0]
    assert scores(found, rule(1)).observed[0]


@pytest.mark.parametrize(("method", "name"), [("reap_softmax", "pn"), ("reap_public", "pn_public")])
def test_statistics_without_a_sum_serve_all_other_criteria(method, name):
    found = random_stats(1)
    found.experts.sums = {key: value for key, value in found.experts.sums.items() if key != name}
    with pytest.raises(UsageError) as caught:
        scores(found, rule(4, method=method), "abc", 16)
    assert caught.value.what == f"'{method}' needs the sum '{name}', which the statistics do not have"
    assert ("--set calibrate.public_reap=true" in caught.value.fix) == (method == "reap_public")
    assert "another --method, such as reap" in caught.value.fix
    scores(found, rule(4), "abc", 16)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
def test_impossible_statistics_are_refused_with_layer_and_expert(bad):
    found = random_stats(1)
    found.experts.sums["gn"][11, 2] = bad
    with pytest.raises(UsageError) as caught:
        scores(found, rule(4), "abc", 16)
    assert caught.value.where == "layer 7, expert 11"
    assert str(bad) in caught.value.what
    found.experts.sums["gn"][11, 2] = 1.0
    scores(found, rule(4), "abc", 16)


def test_statistics_of_another_shape_or_of_a_dense_layer_are_refused():
    with pytest.raises(UsageError, match="16 experts in 3 domains, not 384 in 3"):
        scores(random_stats(1), rule(4), "abc", 384)
    with pytest.raises(UsageError, match="another model"):
        scores(random_stats(1), rule(4), "ab", 16)
    with pytest.raises(UsageError, match="the statistics have no expert data for this MoE layer"):
        scores(LayerStats({"mlp.up_proj": 1.0}), rule(4), "abc", 16)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), method=st.sampled_from(["reap", "ean", "msan", "frequency", "reap_l2"]))
def test_splitting_tokens_into_domains_does_not_change_scores(seed, method):
    many = random_stats(seed)
    sums = {name: values.sum(axis=1) for name, values in many.experts.sums.items()}
    one = stats(many.experts.count.sum(axis=1), **sums)
    assert np.array_equal(
        scores(many, rule(4, method=method), "abc", 16).blended, scores(one, rule(4, method=method), "a", 16).blended
    )
