"""Tool calls: declared calls that fit, new functions in the tests, and a score that parses Kimi's markup."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise

from training.domains import tools
from training.domains.structured import fits
from training.domains.tools import parse_calls, score, should_trigger, train_sample, triggered, valid
from training.domains.tools import test_items as make_items
from training.sample import held_out
from training.words.tools_functions import INTENTS

WINDOW = 13
SPLITS = (str.split, re.compile(r"\w+").findall)
ALL_NAMES = {name for intent in INTENTS for name in intent.names}


def samples(count, seed=0):
    rng = random.Random(seed)
    return [train_sample(rng) for _ in range(count)]


def windows(text, split):
    words = split(text)
    return {tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1)}


def markup(calls, first=0):
    body = "".join(
        f"<|tool_call_begin|>functions.{call['name']}:{first + i}<|tool_call_argument_begin|>"
        f"{json.dumps(call['arguments'])}<|tool_call_end|>"
        for i, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|><|im_end|>"


def right_output(item):
    return markup(item.fields["calls"]) if item.fields["calls"] else f"{item.answer}<|im_end|>"


def texts_of(messages, reply=""):
    """Return the text of each message, and each request with what follows it."""
    said = [message["content"] + " ".join(arguments_of(message)) for message in messages] + [reply]
    return [*said, *(f"{a} {b}" for a, b in pairwise(said))]


def arguments_of(message):
    return [call["function"]["arguments"] for call in message.get("tool_calls", ())]


def test_same_seed_same_bytes():
    assert samples(50, seed=7) == samples(50, seed=7) != samples(50, seed=8)
    assert make_items(50, 3) == make_items(50, 3) != make_items(50, 4)
    assert json.loads(json.dumps(make_items(3, 0)[0].as_dict()))


def test_calls_in_training_are_declared_fit_and_numbered_through():
    calls = 0
    for sample in samples(1500):
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in sample.tools}
        assert 1 <= len(schemas) == len(sample.tools) <= tools.MOST_TOOLS
        made = [call for message in sample.messages for call in message.get("tool_calls", ())]
        for number, call in enumerate(made):
            name = call["function"]["name"]
            assert call["id"] == f"functions.{name}:{number}"
            assert fits(json.loads(call["function"]["arguments"]), schemas[name])
        results = [message["tool_call_id"] for message in sample.messages if message["role"] == "tool"]
        assert results in ([call["id"] for call in made], [])
        calls += len(made)
    assert calls > 1000


def test_values_of_a_call_are_in_the_request():
    for item in make_items(600, 1):
        request = item.messages[-1]["content"]
        for call in item.fields["calls"]:
            for value in call["arguments"].values():
                spoken = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
                assert re.search(rf"\b{spoken}\b", request)


def test_some_functions_and_all_values_of_the_tests_are_new():
    kept = {name for name in ALL_NAMES if held_out(f"tools|function|{name}")}
    assert len(kept) > 10
    trained = samples(1500)
    assert not kept & {tool["function"]["name"] for sample in trained for tool in sample.tools}
    seen = {call for sample in trained for call in called(sample.messages)}
    items = make_items(600, 0)
    assert not seen & {call for item in items for call in called(item.messages)}
    news = [item for item in items if item.fields["new_functions"]]
    assert 0.2 < len(news) / len(items) < 0.4
    assert any(call["name"] in kept for item in news for call in item.fields["calls"])


def called(messages):
    """Return the requests that led to a call, keyed by text, independent of the function's name."""
    return {ask["content"] for ask, reply in pairwise(messages) if reply.get("tool_calls")}


def test_no_window_is_shared_with_training():
    items = make_items(600, 0)
    drawn = samples(1200, seed=9)
    for split in SPLITS:
        tested: set[tuple[str, ...]] = set()
        for item in items:
            reply = " ".join(json.dumps(call["arguments"]) for call in item.fields["calls"]) or item.answer
            tested.update(*(windows(text, split) for text in texts_of(item.messages, reply)))
        for sample in drawn:
            assert not any(tested & windows(text, split) for text in texts_of(sample.messages))


def test_messages_are_short():
    for sample in samples(1000, seed=4):
        assert all(len(message["content"].split()) <= 24 for message in sample.messages)
    for intent in INTENTS:
        for request in (*intent.requests, f"I am Mia. {intent.incomplete}", intent.report):
            assert len(request.split()) < WINDOW


def test_score_takes_what_is_right():
    for item in make_items(500, 0):
        output = right_output(item)
        assert score(item, output)
        assert valid(item, output)
        assert triggered(output) == should_trigger(item)


def test_score_refuses_what_is_wrong():
    for item in make_items(500, 2):
        calls = item.fields["calls"]
        if not calls:
            made_up = {"name": item.tools[0]["function"]["name"], "arguments": {}}
            assert not score(item, markup([made_up]))
            assert not score(item, "")
            assert not score(item, f"{item.answer} Really.")
            continue
        output = right_output(item)
        wrong = [
            "No tool fits.",
            markup([*calls, calls[0]]),
            markup([]),
            markup([{**calls[0], "name": "no_function"}, *calls[1:]]),
            output.replace("{", "{{", 1),
            output.replace("<|tool_calls_section_end|>", ""),
            output.replace("<|tool_call_end|>", "", 1),
            output.replace("functions.", "", 1),
        ]
        assert not any(score(item, text) for text in wrong)
        assert not any(valid(item, text) for text in wrong[2:])


def test_valid_looks_at_the_declared_schema_only():
    item = next(item for item in make_items(100, 3) if item.fields["form"] == "one call")
    call = item.fields["calls"][0]
    key, value = next(iter(call["arguments"].items()))
    other = value + 1 if isinstance(value, int) else value + "x"
    unasked = markup([{**call, "arguments": {**call["arguments"], key: other}}])
    assert valid(item, unasked)
    assert not score(item, unasked)
    for arguments in ({}, {**call["arguments"], "more": 1}, {**call["arguments"], key: None}):
        assert not valid(item, markup([{**call, "arguments": arguments}]))
    assert valid(item, "No call at all.")
    assert not valid(replace(item, tools=()), right_output(item))


def test_parse_calls_reads_several_and_survives_nonsense():
    calls = [{"name": "a_b", "arguments": {"x": 1}}, {"name": "c", "arguments": {}}]
    assert parse_calls("Thinking.</think>" + markup(calls, first=4)) == [("a_b", {"x": 1}), ("c", {})]
    broken = markup(calls).replace('{"x": 1}', '{"x": ')
    assert parse_calls(broken) == [("a_b", None), ("c", {})]
    assert parse_calls("no markup") == parse_calls("<|tool_calls_section_begin|>") == []


def test_tests_ask_for_everything_in_the_mix():
    forms = Counter(item.fields["form"] for item in make_items(600, 5))
    assert set(forms) == {*tools.MIX, "report"}
    assert min(forms.values()) > 25
    assert any(sample.thinking for sample in samples(200))
