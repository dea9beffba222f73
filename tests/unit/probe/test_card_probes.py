"""Each card probe passes on the right answer, fails on a wrong one, and marks the position."""

import pytest
from fake_openai import Say

from halfbyte.probe import card_probes
from halfbyte.probe.judging import marked
from halfbyte.probe.probe import Verdict
from halfbyte.probe.profiles import load_profile

QUESTIONS = load_profile("kimi").questions
LOOP = "the saliva of the cat " * 60
CARD = ["json", "math", "unicode-echo", "structured", "long-json", "unicode-math", "philosophy", "code", "ascii-code",
        "long-code", "tool-call", "vision", "coding-canary", "unicode-chart"]  # fmt: skip


def ask_of(name, number=0):
    section = QUESTIONS[name]
    return section["items"][number]["ask"] if "items" in section else section["ask"]


def test_right_answers_pass_every_card_probe(probe):
    result = probe("card")
    assert list(result) == sorted(result, key=list(result).index)
    assert set(result) == set(CARD)
    assert {name: one.measured for name, one in result.items() if one.verdict is not Verdict.PASSED} == {}


WRONG = [
    ("json", '{"city": "Paris", "primes": [2, 3, 5, 7, 11], "even": false', "not JSON"),
    ("json", '{"city": "Paris", "primes": [2, 3, 5, 7, 12], "even": false}', "primes.4 is 12 instead of 11"),
    ("json", '{"city": "Pàris", "primes": [2, 3, 5, 7, 11], "even": false}', "instead of"),
    ("math", "It is\n392", "392 instead of 391"),
    ("math", "I cannot say.", "no number; expected 391"),
    ("unicode-echo", "Zażółć gęślą jaźn, čeština, łódź, Ærøskøbing", "LATIN SMALL LETTER N instead of U+0144"),
    ("structured", '```json\n{"name": "Maria Novak"}\n```', "a code fence"),
    ("structured", '{"name": "Maria Novak", "age": 34, "city": "Ljubljana"}', "languages is missing"),
    ("long-json", '[{"month": "January", "number": 1, "days": 31}]', "1 entries instead of 12"),
    ("unicode-math", "√ ≤ ≥ ≠ π ∑ ∞ ∫ ∈", "'∀' is missing"),
    ("philosophy", "λόγος and 道 and 仁 and \ufffd", "replacement-character"),
    ("philosophy", f"λόγος and 道 and 仁. {LOOP}", "loop"),
    ("code", "```python\ndef fibonacci(n:\n    return n\n```", "not Python"),
    ("code", "def fib(n):\n    return n\n", "fibonacci is not defined"),
    ("ascii-code", "def is_palindrome(text):\n    return text == \u2018x\u2019\n", "not Python"),
    ("ascii-code", 'def is_palindrome(text):\n    return text == "—"\n', "U+2014 is not ASCII"),
    ("long-code", "class InventoryStore:\npass", "not Python"),
    ("tool-call", "get_weather(Warsaw)", "no tool was called"),
    ("tool-call", "<|tool_calls_section_begin|>get_weather", "special-token"),
    ("vision", "A red circle and some text: K2-192, SUM=166, blue.", "not seen: the word square"),
    ("vision", "It says K2-129 and SUM=166, a red square and a blue square.", "not seen: the text K2-192"),
    ("coding-canary", "def two_sum(numbers, target):\n    return (0, 1)\n", "AssertionError"),
    ("coding-canary", "def two_sum(numbers, target):\n    while True:\n        pass\n", "ended by time"),
    ("unicode-chart", "print('Mon ###')\n", "U+0023 NUMBER SIGN instead of U+2588 FULL BLOCK"),
]


@pytest.mark.parametrize(("name", "said", "what"), WRONG)
def test_a_wrong_answer_fails_and_is_shown(name, said, what, fake, probe, monkeypatch):
    if "while True" in said:
        monkeypatch.setattr(card_probes, "RUN_S", 4.0)
    fake.answers[ask_of(name)] = said
    finding = probe(name)[name]
    assert finding.verdict is Verdict.FAILED
    assert any(what in one.problem for one in finding.excerpts), finding.excerpts
    assert finding.cause
    assert all(one.trace for one in finding.excerpts)


def test_a_wrong_function_or_wrong_arguments_fail(fake, probe):
    for function, what in (
        ({"name": "get_time", "arguments": '{"city": "Warsaw"}'}, "get_time was called instead of get_weather"),
        ({"name": "get_weather", "arguments": '{"city": "Warszawa"}'}, "expected {"),
        ({"name": "get_weather", "arguments": '{"city": '}, "arguments are not valid JSON"),
    ):
        fake.answers[ask_of("tool-call")] = Say(None, None, [{"function": function}], "tool_calls")
        finding = probe("tool-call")["tool-call"]
        assert finding.verdict is Verdict.FAILED
        assert what in finding.excerpts[0].problem


def test_an_answer_that_is_cut_fails_even_if_its_start_is_right(fake, probe):
    fake.answers[ask_of("math")] = Say("It is 391", finish_reason="length")
    finding = probe("math")["math"]
    assert finding.verdict is Verdict.FAILED
    assert "does not end" in finding.excerpts[0].problem


def test_a_server_without_image_support_skips_vision_with_the_reason(fake, probe):
    fake.fails[ask_of("vision")] = 400
    result = probe("vision", "math")
    assert result["vision"].verdict is Verdict.SKIPPED
    assert "does not accept images" in result["vision"].measured


def test_without_a_sandbox_programs_are_skipped_not_passed(monkeypatch, probe):
    from halfbyte.probe import run
    from halfbyte.sandbox.tiers import Tier

    monkeypatch.setattr(run, "find_tier", lambda: Tier("none", None, "no namespaces here"))
    result = probe("coding-canary", "math")
    assert result["coding-canary"].verdict is Verdict.SKIPPED
    assert "no namespaces here" in result["coding-canary"].measured


def test_a_wrong_character_is_marked_and_named(fake, probe):
    fake.answers[ask_of("unicode-echo", 2)] = "Привет, мир! Ελληνικά: λόγος, ψυχη"
    shown = probe("unicode-echo")["unicode-echo"].excerpts[0]
    assert "ETA instead of U+03AE GREEK SMALL LETTER ETA WITH TONOS" in shown.problem
    assert marked(shown).endswith("ψυχ⟦η⟧")


def test_exclamation_marks_have_their_own_cause(fake, probe):
    fake.answers[ask_of("math")] = "!" * 300
    assert probe("math")["math"].cause == "exclamation-marks"
