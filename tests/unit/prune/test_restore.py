"""Restoring dropped experts."""

import pytest
from expert_stats import random_stats, router, rule, stats

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.prune.choose import choose, with_coverage
from halfbyte.prune.restore import restore


def plan(layers, keep, shape, domains=("all",)):
    return choose(layers, domains, rule(keep), shape, layers_expected=sorted(layers))


def test_the_best_of_the_dropped_come_back_in_each_layer():
    one = plan({1: stats([1] * 6, gn=[6, 1, 5, 2, 2, 3]), 4: stats([1] * 6, gn=[1, 2, 3, 4, 5, 6])}, 2, router(6))
    assert one.kept() == {1: (0, 2), 4: (4, 5)}
    back = restore(one, 2)
    assert back.kept() == {1: (0, 2, 3, 5), 4: (2, 3, 4, 5)}  # of 3 and 4, alike, the lower number
    assert back.layers[1].reasons == {3: "restored", 5: "restored"}
    assert back.layers[1].scores == one.layers[1].scores
    assert (back.coverage, back.non_uniform, back.rule) == ({}, False, rule(4))
    assert one.kept() == {1: (0, 2), 4: (4, 5)}


def test_a_share_that_goes_is_a_number_that_stays_after_that():
    one = choose({1: random_stats(1)}, "abc", rule(drop=0.5), router(16), layers_expected=[1])
    assert restore(one, 3).rule == rule(11)


def test_what_a_restored_plan_covers_is_measured_again():
    layers = {1: random_stats(1), 2: random_stats(2)}
    grown = with_coverage(restore(plan(layers, 8, router(16), "abc"), 4), layers, "abc", rule(8))
    larger = plan(layers, 12, router(16), "abc").coverage
    assert grown.coverage == {key: larger[key] for key in ("domains", "layers")}


def test_where_they_help_most_is_relative_to_the_layer():
    # What was dropped: 40 % and 30 % of layer 1, thousands of layer 2 that are little of it.
    layers = {1: stats([1] * 4, gn=[3, 4, 3, 0]), 2: stats([1] * 4, gn=[900_000, 9_000, 8_000, 1])}
    one = plan(layers, 1, router(4))
    back = restore(one, 1, where="most")
    assert back.kept() == {1: (0, 1, 2), 2: (0,)}
    assert back.non_uniform and back.rule == rule(2)
    assert restore(one, 1).kept() == {1: (0, 1), 2: (0, 1)}


def test_with_groups_each_group_gets_as_many():
    one = plan({1: random_stats(1)}, 8, router(16, 2, 4, 2), "abc")
    back = restore(one, 4)
    for group in range(4):
        assert sum(expert // 4 == group for expert in back.kept()[1]) == 3
    assert restore(one, 4, where="most").kept() == back.kept()


@pytest.mark.parametrize(
    ("more", "where", "what"),
    [
        (0, "each", "cannot restore 0 experts"),
        (9, "each", "cannot restore 9 experts, only 8 were dropped"),
        (9, "most", "cannot restore 18 experts, only 16 were dropped in all layers"),
    ],
)
def test_more_than_there_are(more, where, what):
    one = plan({1: random_stats(1), 2: random_stats(2)}, 8, router(16), "abc")
    with pytest.raises(UsageError) as caught:
        restore(one, more, where=where)
    assert caught.value.what == what
    assert restore(one, 8, where=where).counts() == {1: 16, 2: 16}


def test_groups_and_lists_without_scores():
    grouped = plan({1: random_stats(1)}, 8, router(16, 2, 4, 2), "abc")
    with pytest.raises(UsageError, match="2 experts cannot be split into 4 groups"):
        restore(grouped, 2)
    bare = PrunePlan(router=router(4), layers={1: LayerChoice((0, 1))}, rule=None)
    with pytest.raises(UsageError, match="this plan has no scores to rank the dropped experts by"):
        restore(bare, 1)
