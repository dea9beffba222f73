"""The prune plan as a file: round trips, and one error for each defect."""

import copy
import json

import pytest
from expert_stats import random_stats, router, rule
from hypothesis import given, settings
from hypothesis import strategies as st

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import (
    KIND,
    LayerChoice,
    PrunePlan,
    plan_text,
    read_prune_plan,
    write_prune_plan,
)
from halfbyte.prune.build_plan import choose
from halfbyte.prune.selection import restore


def example_plan(keep=8, shape=None, counts=None, **changes):
    layers = {layer: random_stats(layer) for layer in (1, 2, 12)}
    layers[2].experts.count[5] = 0
    return choose(layers, "abc", rule(keep, **changes), shape or router(16, 2), layers_expected=layers, counts=counts)


@pytest.mark.parametrize(
    "plan",
    [
        example_plan(),
        example_plan(select="max_min", protect=True),
        example_plan(blend={"a": 1.0, "b": 0.5, "c": 0.0}),
        example_plan(method="msan", shape=router(16, 2, 4, 2)),
        restore(example_plan(), 2),
        example_plan(counts={1: 6, 2: 8, 12: 10}),
        PrunePlan(router=router(4), layers={7: LayerChoice((0, 3))}, rule=None, source={"name": "m"}, edited=True),
    ],
    ids=["mean", "max_min", "blend", "groups", "restored", "non_uniform", "bare"],
)
def test_a_plan_round_trips(plan, tmp_path):
    path = tmp_path / "prune-plan.json"
    write_prune_plan(path, plan)
    assert read_prune_plan(path, layers_expected=plan.layers) == plan
    assert path.read_text() == plan_text(plan)
    assert json.loads(plan_text(plan)) == plan.as_dict()
    assert [file.name for file in tmp_path.iterdir()] == ["prune-plan.json"]


def test_the_plan_text_has_one_line_per_field():
    lines = plan_text(example_plan()).splitlines()
    at = lines.index('    "2": {')
    assert lines[at + 1] == '      "count": 8,'
    assert lines[at + 2].startswith('      "kept": [')
    assert lines[at + 4] == '      "reasons": {"5": "unobserved"}'
    assert [json.loads(line.strip().split(": ")[0].removesuffix(": {")) for line in lines if line.endswith(": {")] == [
        "layers",
        "1",
        "2",
        "12",
    ]


def test_a_plan_describes_itself():
    plan = example_plan()
    assert plan.experts == 16
    assert plan.counts() == {1: 8, 2: 8, 12: 8}
    assert list(plan.kept()) == [1, 2, 12]
    assert plan.kept_sha256() == PrunePlan.of(plan.as_dict()).kept_sha256()
    assert plan.kept_sha256() != restore(plan, 1).kept_sha256()


def test_an_edit_by_hand_is_applied_and_recorded():
    found = example_plan().as_dict()
    layer = found["layers"]["1"]
    kept = [expert for expert in range(16) if expert not in layer["kept"]][:8]
    layer["kept"] = kept
    layer["reasons"] = {str(kept[0]): "needed for Polish"}
    plan = PrunePlan.of(found)
    assert plan.edited
    assert plan.kept()[1] == tuple(kept)
    assert plan.layers[1].reasons == {kept[0]: "needed for Polish"}
    again = PrunePlan.of(plan.as_dict())
    assert again == plan
    assert again.edited
    assert not PrunePlan.of(example_plan().as_dict()).edited


MADE = example_plan().as_dict()


def with_change(path, value):
    found = copy.deepcopy(MADE)
    at = found
    *inner, last = path
    for key in inner:
        at = at[key]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return found


ONE = ("layers", "1")
FINE = [0, 1, 2, 3, 4, 5, 6, 7]
REFUSED = [
    (("kind",), "halfbyte plan", "this is not a halfbyte prune plan"),
    (("version",), 2, "unsupported plan version 2; expected 1"),
    (("layers",), KeyError, "'layers' is missing"),
    (("statistics",), KeyError, "'statistics' is missing"),
    (("layerz",), {}, "unknown key 'layerz'"),
    (("coverage",), [], "this is not a JSON object"),
    (("source",), {"chosen_on": 3}, "this is not a JSON object"),
    (("non_uniform",), "no", "'non_uniform' is neither true nor false"),
    (("edited",), 1, "'edited' is neither true nor false"),
    (("router", "top_k"), 0, "invalid value 0 for 'top_k'"),
    (("router", "experts"), True, "invalid value True for 'experts'"),
    (("router", "groups"), 1, "unknown key 'groups'"),
    (("router",), 16, "this is not a JSON object"),
    (("layers",), {}, "the plan has no layers"),
    (("layers",), [], "this is not a JSON object"),
    (("layers", "01"), {}, "'01' is not a layer number"),
    (("layers", "first"), {}, "'first' is not a layer number"),
    (("layers", "1"), [0, 1], "this is not a JSON object"),
    ((*ONE, "kept"), KeyError, "'kept' is missing"),
    ((*ONE, "keep"), [], "unknown key 'keep'"),
    ((*ONE, "kept"), "all", "'kept' is not a list"),
    ((*ONE, "kept"), [*FINE[:7], "7"], "'7' is not an expert number"),
    ((*ONE, "kept"), [*FINE[:7], 7.0], "7.0 is not an expert number"),
    ((*ONE, "kept"), [*FINE[:7], True], "True is not an expert number"),
    ((*ONE, "kept"), [*FINE[:7], 16], "unknown expert 16"),
    ((*ONE, "kept"), [-1, *FINE[:7]], "unknown expert -1"),
    ((*ONE, "kept"), [0, *FINE[:7]], "duplicate expert 0"),
    ((*ONE, "kept"), FINE[::-1], "the experts are not in ascending order"),
    ((*ONE, "kept"), [0], "1 experts are too few: each token is routed to 2"),
    ((*ONE, "kept"), [], "0 experts are too few: each token is routed to 2"),
    ((*ONE, "kept"), FINE[:7], "'count' is 8, but 7 experts are kept"),
    ((*ONE, "count"), 9, "'count' is 9, but 8 experts are kept"),
    ((*ONE, "scores"), [1.0], "1 scores for 16 experts"),
    ((*ONE, "scores"), {}, "'scores' is not a list"),
    ((*ONE, "scores"), [1.0] * 15 + ["1"], "invalid score '1' for expert 15"),
    ((*ONE, "scores"), [-1.0] + [1.0] * 15, "invalid score -1.0 for expert 0"),
    ((*ONE, "scores"), [float("nan")] + [1.0] * 15, "invalid score nan for expert 0"),
    ((*ONE, "reasons"), {"16": "x"}, "unknown expert '16'"),
    ((*ONE, "reasons"), {"x": "x"}, "unknown expert 'x'"),
    ((*ONE, "reasons"), {"3": ""}, "the reason for expert 3 is not text"),
    ((*ONE, "reasons"), [], "this is not a JSON object"),
    (("rule", "method"), "reaper", "invalid value 'reaper' for 'method'"),
    (("rule", "select"), None, "invalid value None for 'select'"),
    (("rule", "keep"), None, "invalid value None for 'keep'"),
    (("rule", "keep"), 0, "invalid value 0 for 'keep'"),
    (("rule", "drop"), 0.5, "invalid value 8 for 'keep'"),
    (("rule", "drop"), 2.0, "invalid value 2.0 for 'drop'"),
    (("rule", "blend"), {"a": -1}, "invalid value {'a': -1} for 'blend'"),
    (("rule", "protect"), 1, "invalid value 1 for 'protect'"),
    (("rule", "min_tokens"), -1, "invalid value -1 for 'min_tokens'"),
    (("rule", "min_tokens"), KeyError, "'min_tokens' is missing"),
    (("rule",), "reap", "this is not a JSON object"),
]


@pytest.mark.parametrize(("path", "value", "what"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_said(path, value, what):
    with pytest.raises(UsageError) as caught:
        PrunePlan.of(with_change(path, value), where="P")
    assert caught.value.what == what
    assert caught.value.where.startswith("P")
    assert caught.value.fix


def test_layers_are_compared_with_the_checkpoints():
    found = example_plan().as_dict()
    for expected, what in [
        ((1, 2, 3, 4, 12), "the plan has no layer 3 and 1 more"),
        ((1, 2), "the checkpoint has no routed experts in layer 12"),
    ]:
        with pytest.raises(UsageError) as caught:
            PrunePlan.of(found, layers_expected=expected)
        assert caught.value.what == what


def test_different_counts_need_non_uniform():
    found = example_plan().as_dict()
    found["layers"]["2"] |= {"kept": FINE[:6], "count": 6}
    with pytest.raises(UsageError) as caught:
        PrunePlan.of(found)
    assert caught.value.what == "layer 1 keeps 8 experts and layer 2 keeps 6"
    assert "stock vLLM cannot load that" in caught.value.fix
    found["non_uniform"] = True
    assert PrunePlan.of(found).counts() == {1: 8, 2: 6, 12: 8}


def test_groups_must_keep_the_same_number():
    found = example_plan(shape=router(16, 2, 4, 2)).as_dict()
    found["layers"]["1"]["kept"] = FINE
    with pytest.raises(UsageError, match="the groups keep 4, 4, 0, 0 experts"):
        PrunePlan.of(found)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "this is not JSON"),
        ("[1, 2]", "this is not a halfbyte prune plan"),
        ("null", "this is not a halfbyte prune plan"),
        ('{"1": [0, 1]}', "this is not a halfbyte prune plan"),
        ('{"kind": "a", "kind": "b"}', "this is not JSON: duplicate key 'kind'"),
        ("[" * 100_000, "this is not JSON"),
        ("\xff", "this is not JSON"),
    ],
)
def test_files_that_are_not_plans_are_refused(text, what, tmp_path):
    path = tmp_path / "prune-plan.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as caught:
        read_prune_plan(path)
    assert caught.value.what.startswith(what)
    assert caught.value.where == str(path)


def test_unreadable_plan_files_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(UsageError, match="the file cannot be read"):
            read_prune_plan(path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), value=_JSON)
def test_any_wrong_value_is_a_usage_error(data, value):
    """Any value in any place of a plan is read, or rejected with an error."""
    found = copy.deepcopy(MADE)
    at = found
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
            at = at[key]
            continue
        at[key] = value
        break
    try:
        plan = PrunePlan.of(found)
    except UsageError as error:
        assert error.fix
    else:
        assert plan.as_dict()["kind"] == KIND
