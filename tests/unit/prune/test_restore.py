"""Restoring dropped experts."""

import pytest
from expert_stats import random_stats, router, rule, stats

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.prune.build_plan import choose, with_coverage
from halfbyte.prune.selection import restore


def plan(layers, keep, shape, domains=("all",)):
    return choose(layers, domains, rule(keep), shape, layers_expected=sorted(layers))


def test_the_best_dropped_experts_are_restored_in_each_layer():
    chosen = plan({1: stats([1] * 6, gn=[6, 1, 5, 2, 2, 3]), 4: stats([1] * 6, gn=[1, 2, 3, 4, 5, 6])}, 2, router(6))
    assert chosen.kept() == {1: (0, 2), 4: (4, 5)}
    back = restore(chosen, 2)
    assert back.kept() == {1: (0, 2, 3, 5), 4: (2, 3, 4, 5)}  # of 3 and 4, alike, the lower number
    assert back.layers[1].reasons == {3: "restored", 5: "restored"}
    assert back.layers[1].scores == chosen.layers[1].scores
    assert (back.coverage, back.non_uniform, back.rule) == ({}, False, rule(4))
    assert chosen.kept() == {1: (0, 2), 4: (4, 5)}


def test_restoring_turns_a_dropped_share_into_a_kept_count():
    chosen = choose({1: random_stats(1)}, "abc", rule(drop=0.5), router(16), layers_expected=[1])
    assert restore(chosen, 3).rule == rule(11)


def test_the_coverage_of_a_restored_plan_is_computed_again():
    layers = {1: random_stats(1), 2: random_stats(2)}
    grown = with_coverage(restore(plan(layers, 8, router(16), "abc"), 4), layers, "abc", rule(8))
    larger = plan(layers, 12, router(16), "abc").coverage
    assert grown.coverage == {key: larger[key] for key in ("domains", "layers")}


def test_restoring_adds_the_same_number_to_each_group():
    chosen = plan({1: random_stats(1)}, 8, router(16, 2, 4, 2), "abc")
    back = restore(chosen, 4)
    for group in range(4):
        assert sum(expert // 4 == group for expert in back.kept()[1]) == 3


@pytest.mark.parametrize(
    ("more", "what"),
    [(0, "cannot restore 0 experts"), (9, "cannot restore 9 experts, only 8 were dropped")],
)
def test_restoring_more_experts_than_dropped_is_refused(more, what):
    chosen = plan({1: random_stats(1), 2: random_stats(2)}, 8, router(16), "abc")
    with pytest.raises(UsageError) as caught:
        restore(chosen, more)
    assert caught.value.what == what
    assert restore(chosen, 8).counts() == {1: 16, 2: 16}


def test_restoring_needs_scores_and_a_multiple_of_the_groups():
    grouped = plan({1: random_stats(1)}, 8, router(16, 2, 4, 2), "abc")
    with pytest.raises(UsageError, match="2 experts cannot be split into 4 groups"):
        restore(grouped, 2)
    bare = PrunePlan(router=router(4), layers={1: LayerChoice((0, 1))}, rule=None)
    with pytest.raises(UsageError, match="this plan has no scores to rank the dropped experts by"):
        restore(bare, 1)
