"""JSON with a schema: answers fit and are stated in the text, test people are new, wrong answers fail."""

import json
import random
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from training.domains.structured import fits, score, train_sample, valid
from training.domains.structured import test_items as make_items
from training.sample import held_out

WINDOW = 13
SPLITS = (str.split, re.compile(r"\w+").findall)


def samples(count, seed=0):
    rng = random.Random(seed)
    return [train_sample(rng) for _ in range(count)]


def windows(text, split):
    words = split(text)
    return {tuple(words[i : i + WINDOW]) for i in range(len(words) - WINDOW + 1)}


def rows_of(answer):
    return answer if isinstance(answer, list) else [answer]


def people_of(answer):
    return [next(iter(row.values())) for row in rows_of(answer)]


def test_same_seed_same_bytes():
    assert samples(50, seed=7) == samples(50, seed=7) != samples(50, seed=8)
    assert make_items(50, 3) == make_items(50, 3) != make_items(50, 4)


def test_answers_fit_their_schema_and_survive_jsonl():
    for item in make_items(700, 0):
        output = json.dumps(item.answer)
        assert score(item, output)
        assert valid(item, output)
        loaded = json.loads(json.dumps(item.as_dict()))
        assert score(replace(item, answer=loaded["answer"], fields=loaded["fields"]), output)


def test_everything_in_an_answer_is_in_the_text():
    for item in make_items(700, 1):
        for row in rows_of(item.answer):
            for value in row.values():
                parts = value if isinstance(value, list) else [value]
                assert all(str(part) in item.fields["text"] for part in parts if isinstance(part, str | float))
                assert all(re.search(rf"\b{part}\b", item.fields["text"]) for part in parts if type(part) is int)


def test_training_and_tests_are_about_different_people():
    for sample in samples(2000):
        people = people_of(json.loads(sample.messages[-1]["content"]))
        assert not any(held_out(f"structured|{who}") for who in people)
    for item in make_items(700, 2):
        assert all(held_out(f"structured|{who}") for who in people_of(item.answer))


def test_nearly_any_window_of_a_test_item_names_a_person_of_the_tests():
    """So it cannot be in training. Six fields leave a few windows between two names: training.overlap checks them."""
    named: list[bool] = []
    for item in make_items(400, 3):
        people = [tuple(who.split()) for who in people_of(item.answer)]
        for split in SPLITS:
            for window in windows(f"{item.fields['text']} {json.dumps(item.answer)}", split):
                words = [word.strip('.,:"{}[]') for word in window]
                named.append(any(pair in people for pair in pairwise(words)))
    assert len(named) > 10_000
    assert sum(named) > 0.99 * len(named)


def test_no_window_is_shared_with_training():
    items = make_items(700, 0)
    for split in SPLITS:
        tested = set().union(*(windows(f"{item.fields['text']} {json.dumps(item.answer)}", split) for item in items))
        assert len(tested) > 5000
        for sample in samples(1000, seed=9):
            text = " ".join(message["content"] for message in sample.messages)
            assert not tested & windows(text, split)


def test_score_refuses_what_is_not_exactly_right():
    for item in make_items(300, 5):
        right = json.dumps(item.answer)
        assert score(item, f"a thought</think>{right}<|im_end|>")
        changed = json.loads(right)
        row = rows_of(changed)[0]
        row[next(iter(row))] += "x"
        wrong = [json.dumps(changed), right[:-1], f"{right} and more", f"```json\n{right}\n```", "", "null"]
        row.pop(next(iter(row)))
        wrong.append(json.dumps(changed))
        assert not any(score(item, output) for output in wrong)


def test_score_tells_types_apart():
    item = replace(make_items(1, 0)[0], answer={"a": 1, "b": True, "c": None})
    assert score(item, '{"b": true, "c": null, "a": 1}')
    for wrong in (
        '{"a": "1", "b": true, "c": null}',
        '{"a": 1, "b": 1, "c": null}',
        '{"a": 1, "b": true, "c": "null"}',
    ):
        assert not score(item, wrong)
    assert not score(item, '{"a": 1.0, "b": true, "c": null}')


@pytest.mark.parametrize(
    ("value", "schema", "verdict"),
    [
        (3, {"type": "integer"}, True),
        (True, {"type": "integer"}, False),
        (3.5, {"type": "integer"}, False),
        (3, {"type": "number"}, True),
        ("3", {"type": "number"}, False),
        (None, {"type": "string"}, False),
        (None, {"type": ["string", "null"], "enum": ["low"]}, True),
        ("high", {"type": "string", "enum": ["low"]}, False),
        (["a", 1], {"type": "array", "items": {"type": "string"}}, False),
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True),
        ({}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
        ({"a": 1, "b": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
        (NotImplemented, {"type": "object", "properties": {}}, False),
    ],
)
def test_fits(value, schema, verdict):
    assert fits(value, schema) is verdict


def test_all_kinds_of_values_are_asked_for():
    values = [value for item in make_items(700, 6) for row in rows_of(item.answer) for value in row.values()]
    assert {type(value) for value in values} == {str, int, float, bool, list, type(None)}
    assert any(sample.thinking for sample in samples(200))
