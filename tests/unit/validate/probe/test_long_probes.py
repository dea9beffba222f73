"""Contexts up to 250k and near the limit: prompts are as long as they should be, and wrong answers are found."""

import pytest

from halfbyte.validate.probe.kinds import Verdict
from halfbyte.validate.probe.profiles import load_profile

QUESTIONS = load_profile("kimi").questions


@pytest.mark.parametrize(("name", "wanted"), [("context-32k", 32_768), ("context-limit", 262_144 - 64)])
def test_a_prompt_has_exactly_the_length_of_its_rung(name, wanted, fake, probe):
    finding = probe(name)[name]
    assert finding.verdict is Verdict.PASSED
    assert finding.numbers["exact"] is True
    assert abs(finding.numbers["prompt_tokens"][1] - wanted) == 0
    assert all(abs(one - wanted) <= 2 for one in finding.numbers["prompt_tokens"])
    assert finding.numbers["right"]["of"] == 3


def test_a_band_of_exclamation_marks_is_found_where_it_is(fake, probe):
    fake.needle_limit = 100_000
    found = probe("context-96k", "context-112k")
    assert found["context-96k"].verdict is Verdict.PASSED
    assert found["context-112k"].verdict is Verdict.FAILED
    assert found["context-112k"].cause == "exclamation-marks"


def test_a_wrong_value_fails(fake, probe):
    fake.answers["What is the number of the entry"] = "1"
    finding = probe("context-32k")["context-32k"]
    assert finding.verdict is Verdict.FAILED
    assert finding.cause == "long-context"


def test_every_rung_has_a_list_of_its_own(fake, probe):
    fake.limit = 4096
    probe("context-32k", "context-64k")
    lists = [one["messages"][0]["content"] for one in fake.asked if "- " in one["messages"][0]["content"]]
    assert len({text.splitlines()[2] for text in lists}) == 2


@pytest.mark.parametrize("limit", [4096, 16_384])
def test_all_lengths_scale_to_the_served_limit(limit, fake, probe):
    fake.limit = limit
    found = probe("long", skip=("decode-sweep", "stable-code") if limit == 4096 else ())
    assert {name: one.measured for name, one in found.items() if one.verdict is not Verdict.PASSED} == {}
    longest = max(max(one.numbers["prompt_tokens"]) for one in found.values())
    assert limit - 80 <= longest <= limit


def test_without_tokenize_lengths_come_from_usage_and_stay_below(fake, probe):
    fake.wrong.add("no tokenize")
    finding = probe("context-64k")["context-64k"]
    assert finding.verdict is Verdict.PASSED
    assert finding.numbers["exact"] is False
    assert all(0.9 * 65_536 < one <= 65_536 for one in finding.numbers["prompt_tokens"])


def test_a_smaller_context_can_be_asked_for(fake, probe):
    finding = probe("context-limit", context="2000")["context-limit"]
    assert max(finding.numbers["prompt_tokens"]) <= 2000


@pytest.mark.parametrize(
    ("name", "said", "what"),
    [
        ("decode-sweep", "the cat felis-felis-felis " + "felis-" * 200, "loop"),
        ("mixed-json", '{"pl": "Zażółć gęślą jaźń"}', "el is missing"),
        ("stable-json", '{"weekdays": [', "not JSON"),
        ("stable-code", "def matrix_product(a, b:\n", "not Python"),
        ("stable-unicode", "√ ≤ ≠ π ∞ λ", "'道' is not in it"),
    ],
)
def test_a_wrong_answer_after_a_long_context_fails(name, said, what, fake, probe):
    fake.limit = 8192
    fake.answers[QUESTIONS[name]["items"][0]["ask"]] = said
    finding = probe(name)[name]
    assert finding.verdict is Verdict.FAILED
    assert any(what in one.what for one in finding.shown)
