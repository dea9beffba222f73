"""Keep lists in the published form."""

import json

import pytest
from expert_stats import random_stats, router, rule
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte.errors import UsageError
from halfbyte.prune.build_plan import choose
from halfbyte.prune.keep_list import keep_list, plan_of_keep_list

SHAPE, LAYERS = router(8, 2), (1, 2, 5)
KEPT = {1: (0, 2, 4, 6), 2: (1, 2, 3, 7), 5: (4, 5, 6, 7)}
BY_LAYER = {"1": [0, 2, 4, 6], "2": [1, 2, 3, 7], "5": [4, 5, 6, 7]}
LISTS = list(BY_LAYER.values())


def read(found, **more):
    return plan_of_keep_list(json.loads(json.dumps(found)), SHAPE, LAYERS, **more)


@pytest.mark.parametrize(
    "found",
    [
        BY_LAYER,
        LISTS,
        {layer: experts[::-1] for layer, experts in BY_LAYER.items()},  # by rank, say
        {layer: {"kept": experts, "keep": 4} for layer, experts in BY_LAYER.items()},  # glm-5.2-nonuniform
        {"n_expert": 8, "metric": "sal", "source": "x", "keep": BY_LAYER},  # glm-expert-pruning
        {"format": "f", "old_num_experts": 8, "model_moe_layers": [1, 2, 5], "kept_by_layer": BY_LAYER},
        {"layers": {layer: {"kept_experts": experts} for layer, experts in BY_LAYER.items()}},
        {"kept": LISTS},
    ],
)
def test_published_forms_are_read(found):
    plan = read(found)
    assert plan.kept() == KEPT
    assert (plan.rule, plan.non_uniform, plan.layers[1].scores) == (None, False, ())


def test_lists_of_dropped_experts_are_read():
    gone = {"1": [7, 1, 3, 5], "2": [0, 4, 5, 6], "5": [0, 1, 2, 3]}
    assert read({"dropped": gone}).kept() == KEPT
    assert read({"n_expert": 8, "dropped": list(gone.values())}).kept() == KEPT
    assert read({"dropped": gone, "kept": BY_LAYER}).kept() == KEPT


def test_forms_are_written_as_they_are_published():
    plan = read(BY_LAYER)
    assert keep_list(plan) == BY_LAYER
    assert keep_list(plan, "in_order") == LISTS
    assert keep_list(plan, "counted")["5"] == {"kept": [4, 5, 6, 7], "keep": 4}
    assert keep_list(plan, "dropped")["dropped"]["2"] == [0, 4, 5, 6]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), groups=st.sampled_from([1, 2]))
def test_a_keep_list_round_trips(seed, groups):
    layers, shape = {layer: random_stats(seed + layer) for layer in (3, 4)}, router(16, 2, groups, groups)
    plan = choose(layers, "abc", rule(8), shape, layers_expected=layers)
    for form in ("by_layer", "counted", "in_order", "dropped"):
        found = json.loads(json.dumps(keep_list(plan, form)))
        again = plan_of_keep_list(found, shape, layers)
        assert again.kept() == plan.kept()
        assert again.kept_sha256() == plan.kept_sha256()


def test_a_list_with_different_counts_gives_a_non_uniform_plan():
    assert read({**BY_LAYER, "2": [1, 2]}).non_uniform


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ("all", "this is not a keep list"),
        ({}, "this is not a keep list"),
        ([], "this is not a keep list"),
        (LISTS[:2], "the file does not have lists for 3 layers"),
        ([*LISTS[:2], 4], "the file does not have lists for 3 layers"),
        ({"model": "kimi", "lists": BY_LAYER}, "'model' is not a layer number with a list of experts"),
        ({"1": {"gone": [1]}}, "'1' is not a layer number with a list of experts"),
        ({"1": LISTS[0], "2": LISTS[1]}, "the plan has no layer 5"),
        ({**BY_LAYER, "6": LISTS[0]}, "the checkpoint has no routed experts in layer 6"),
        (
            {"0": LISTS[0], "1": LISTS[1], "2": LISTS[2]},
            "the layers are numbered from 0, but the checkpoint's first MoE layer is 1",
        ),
        ({**BY_LAYER, "2": [1, 2, 3, 8]}, "unknown expert 8"),
        ({**BY_LAYER, "2": [1, 2, 3, 3]}, "duplicate expert 3"),
        ({**BY_LAYER, "2": [1]}, "1 experts are too few: each token is routed to 2"),
        ({**BY_LAYER, "2": [1, 2, 3, "7"]}, "the list has an entry that is not an expert number"),
        ({**BY_LAYER, "2": [1, 2, 3, 7.0]}, "the list has an entry that is not an expert number"),
        ({"n_expert": 256, "keep": BY_LAYER}, "the list is for a model with 256 experts per layer, but this one has 8"),
    ],
)
def test_incomplete_or_foreign_lists_are_refused(found, what):
    with pytest.raises(UsageError) as caught:
        read(found)
    assert caught.value.what == what
    assert caught.value.fix


@pytest.mark.parametrize(
    ("gone", "what"),
    [([8], "unknown expert 8"), ([1, 1], "duplicate expert 1"), (list(range(7)), "1 experts are too few")],
)
def test_dropped_lists_are_checked_too(gone, what):
    with pytest.raises(UsageError, match=what):
        read({"dropped": {**BY_LAYER, "2": gone}})
