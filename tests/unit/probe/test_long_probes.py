"""Probes up to the context limit: prompts have the right length, and wrong answers are found."""

import re

import pytest

from halfbyte.probe.probe import Verdict
from halfbyte.probe.profiles import load_profile
from halfbyte.probe.run import PROBES

QUESTIONS = load_profile("kimi").questions


@pytest.mark.parametrize(("name", "wanted"), [("context-12", 32_768), ("context-limit", 262_144 - 64)])
def test_a_prompt_has_exactly_the_length_of_its_rung(name, wanted, fake, probe):
    finding = probe(name)[name]
    assert finding.verdict is Verdict.PASSED
    assert finding.numbers["exact"] is True
    assert abs(finding.numbers["prompt_tokens"][1] - wanted) == 0
    assert all(abs(one - wanted) <= 2 for one in finding.numbers["prompt_tokens"])
    assert finding.numbers["right"]["total"] == 3


def test_exclamation_marks_at_some_lengths_fail_those_rungs(fake, probe):
    fake.needle_limit = 100_000
    result = probe("context-38", "context-44")
    assert result["context-38"].verdict is Verdict.PASSED
    assert result["context-44"].verdict is Verdict.FAILED
    assert result["context-44"].cause == "exclamation-marks"


def test_a_wrong_value_fails(fake, probe):
    fake.answers["What is the number of the entry"] = "1"
    finding = probe("context-12")["context-12"]
    assert finding.verdict is Verdict.FAILED
    assert finding.cause == "long-context"


def test_every_rung_has_its_own_list(fake, probe):
    fake.limit = 4096
    probe("context-12", "context-25")
    asked = [one["messages"][0]["content"] for one in fake.asked]
    lists = [text for text in asked if "What is the number of the entry" in text]
    assert len(lists) == 6
    assert len({text.splitlines()[2] for text in lists}) == 2


@pytest.mark.parametrize("limit", [4096, 16_384])
def test_all_lengths_scale_to_the_served_limit(limit, fake, probe):
    fake.limit = limit
    result = probe("long", skip=("decode-sweep", "stable-code") if limit == 4096 else ())
    assert {name: one.measured for name, one in result.items() if one.verdict is not Verdict.PASSED} == {}
    longest = max(max(one.numbers["prompt_tokens"]) for one in result.values())
    assert limit - 80 <= longest <= limit


def test_without_tokenize_lengths_come_from_usage_and_stay_below(fake, probe):
    fake.wrong.add("no tokenize")
    finding = probe("context-25")["context-25"]
    assert finding.verdict is Verdict.PASSED
    assert finding.numbers["exact"] is False
    assert all(0.9 * 65_536 < one <= 65_536 for one in finding.numbers["prompt_tokens"])


def test_context_option_limits_the_lengths(fake, probe):
    finding = probe("context-limit", context="2000")["context-limit"]
    assert max(finding.numbers["prompt_tokens"]) <= 2000


@pytest.mark.parametrize(
    ("name", "said", "what"),
    [
        ("decode-sweep", "the cat felis-felis-felis " + "felis-" * 200, "loop"),
        ("mixed-json", '{"pl": "Zażółć gęślą jaźń"}', "el is missing"),
        ("stable-json", '{"weekdays": [', "not JSON"),
        ("stable-code", "def matrix_product(a, b:\n", "not Python"),
        ("stable-unicode", "√ ≤ ≠ π ∞ λ", "'道' is missing"),
    ],
)
def test_a_wrong_answer_after_a_long_context_fails(name, said, what, fake, probe):
    fake.limit = 8192
    fake.answers[QUESTIONS[name]["items"][0]["ask"]] = said
    finding = probe(name)[name]
    assert finding.verdict is Verdict.FAILED
    assert any(what in one.problem for one in finding.excerpts)


def test_probes_of_long_contexts_are_named_by_their_share():
    result = {one.name: one.title for one in PROBES if one.group == "long"}
    assert result["context-12"] == "context at 12.5 %"
    assert result["context-50"] == "context at 50 %"
    assert result["context-98"] == "context at 97.7 %"
    assert result["stable-code"] == "code at 78.1 % of the context"
    assert not [one for pair in result.items() for one in pair if re.search(r"\d+k", one)]
    assert len(result) == 18


def test_a_budget_prefers_three_rungs_of_the_ladder():
    preferred = [one.name for one in PROBES if one.name.startswith("context-") and not one.repeats]
    assert preferred == ["context-12", "context-50", "context-limit"]
