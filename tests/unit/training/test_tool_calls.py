"""Trigger F1 and schema accuracy match the vendor verifier's counts."""

import json

import pytest
from training import tool_calls
from training.domains import tools


def called(name, arguments):
    return (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
    )


def right_call(item):
    call = item.fields["calls"][0]
    return called(call["name"], json.dumps(call["arguments"]))


@pytest.fixture
def wanting():
    """Four items that need one call."""
    return [item for item in tools.test_items(200, 1) if item.fields["form"] == "one call"][:4]


@pytest.fixture
def quiet():
    """Four items that need none."""
    return [item for item in tools.test_items(200, 1) if item.fields["form"] == "small talk"][:4]


def test_right_answers_have_ones(wanting, quiet):
    outputs = [*map(right_call, wanting), *(f"{item.answer}<|im_end|>" for item in quiet)]
    found = tool_calls.quality([*wanting, *quiet], outputs)
    assert (found["f1"], found["precision"], found["recall"], found["schema_accuracy"]) == (1, 1, 1, 1)
    assert (found["items"], found["should_call"], found["called"], found["right"]) == (8, 4, 4, 8)


def test_a_missed_and_an_unwanted_call_cost_recall_and_precision(wanting, quiet):
    calls = [*map(right_call, wanting[:3]), "No.<|im_end|>"]
    words = [right_call(wanting[0]), *(f"{item.answer}<|im_end|>" for item in quiet[1:])]
    found = tool_calls.quality([*wanting, *quiet], calls + words)
    assert found["recall"] == found["precision"] == found["f1"] == 3 / 4


def test_a_call_that_does_not_fit_is_a_call_but_not_valid(wanting):
    item = wanting[0]
    name = item.fields["calls"][0]["name"]
    outputs = [called(name, "{}"), called("no_such_function", "{}"), called(name, "{broken"), right_call(item)]
    found = tool_calls.quality([item] * 4, outputs)
    assert found["schema_accuracy"] == 1 / 4
    assert found["f1"] == 1
    assert found["right"] == 1


def test_a_wrong_value_is_valid_and_not_right(wanting):
    item = wanting[0]
    call = item.fields["calls"][0]
    changed = {key: f"{value}x" if isinstance(value, str) else value + 1 for key, value in call["arguments"].items()}
    schema = next(t["function"]["parameters"] for t in item.tools if t["function"]["name"] == call["name"])
    if any("enum" in rule for rule in schema["properties"].values()):
        pytest.skip("a changed word is no word of the enum")
    found = tool_calls.quality([item], [called(call["name"], json.dumps(changed))])
    assert found["schema_accuracy"] == 1 and found["right"] == 0


def test_no_calls_at_all_are_no_division_by_zero(quiet):
    found = tool_calls.quality(quiet, [f"{item.answer}<|im_end|>" for item in quiet])
    assert (found["f1"], found["schema_accuracy"], found["right"]) == (0, 0, 4)
