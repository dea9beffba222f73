"""Prose, thinking, copying and garbage: healthy answers pass, each fault fails, and a single bad answer does not."""

import json

import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe import prose, thinking
from halfbyte.probe.judging import judge_rate, rate_of
from halfbyte.probe.probe import Verdict

STORY = (
    "A fox found a map under a stone. It showed a river, a hill and a red cross, and the fox was curious at once. "
    "So it walked all morning, slept below an oak, and dug until something shone: a key, small and very old."
)
LOOP = "The cat has saliva " + "saliva " * 400
PROSE = {
    "prompts": [f"Tell me about number {n}." for n in range(12)], "take": 12, "temperatures": [0, 0.7],
    "max_tokens": 300, "tolerated_loops": 0.02, "tolerated_unfinished": 0.1,
}  # fmt: skip
LOOPS, ENDS = prose.PROSE
ON, OFF = thinking.THINKING
GARBAGE, LANGUAGE = prose.GARBAGES


def number_of(body):
    return int("".join(one for one in body["messages"][-1]["content"] if one.isdigit()) or 0)


def looping(count):
    """Answer this many of the prompts with a loop."""
    return lambda body: Said(LOOP if number_of(body) < count else STORY)


@pytest.mark.parametrize(("bad", "verdict"), [(0, Verdict.PASSED), (1, Verdict.PASSED), (4, Verdict.FAILED)])
def test_loops_fail_if_the_interval_is_above_the_tolerated_share(tmp_path, bad, verdict):
    with setting_of(tmp_path, looping(bad), {"prose": PROSE}) as (setting, _):
        finding = LOOPS.run(setting)
    assert finding.verdict is verdict
    assert finding.numbers["ours"]["count"] == 2 * bad
    assert finding.numbers["by_temperature"] == {"0": bad, "0.7": bad}
    assert len(finding.excerpts) == 2 * bad
    for shown in finding.excerpts:
        assert shown.text[shown.start : shown.end].count("saliva") >= 3


@pytest.mark.parametrize(("reason", "found"), [("length", 2), ("stop", 0)])
def test_an_answer_cut_inside_a_loop_counts_as_a_loop(tmp_path, reason, found):
    said = Said("Well. " + 3 * STORY + STORY[:40], finish=reason)
    with setting_of(tmp_path, lambda _: said, {"prose": {**PROSE, "take": 1}}) as (setting, _):
        assert LOOPS.run(setting).numbers["ours"]["count"] == found
        assert ENDS.run(setting).numbers["ours"]["count"] == 0


def test_a_looping_stream_is_canceled(tmp_path):
    """The rest of a loop is not read."""
    long = "saliva " * 40_000
    with setting_of(tmp_path, lambda _: Said(long), {"prose": {**PROSE, "take": 1}}) as (setting, server):
        finding = LOOPS.run(setting)
        assert finding.numbers["ours"]["count"] == 2
        assert server.sent < 2 * len(long)
    rows = [json.loads(line) for line in (tmp_path / "probe.jsonl").read_text().splitlines()]
    assert all(row["answer"]["cut_by"].startswith("loop in the content") for row in rows)
    assert all(len(row["answer"]["content"]) < 1000 for row in rows)


def test_with_a_reference_that_loops_as_often_the_same_rate_passes(tmp_path):
    with setting_of(tmp_path, looping(8), {"prose": PROSE}, against=looping(8)) as (setting, _):
        assert LOOPS.run(setting).verdict is Verdict.PASSED


def test_more_loops_than_the_reference_fail_and_fewer_pass(tmp_path):
    with setting_of(tmp_path, looping(8), {"prose": PROSE}, against=looping(0)) as (setting, _):
        finding = LOOPS.run(setting)
    assert (finding.verdict, finding.cause) == (Verdict.FAILED, "loop")
    assert finding.numbers["p"] == pytest.approx(2**-8)
    (tmp_path / "other").mkdir()
    with setting_of(tmp_path / "other", looping(0), {"prose": PROSE}, against=looping(8)) as (setting, _):
        assert LOOPS.run(setting).verdict is Verdict.PASSED


def test_prose_that_does_not_end_fails_and_costs_no_new_requests(tmp_path):
    with setting_of(tmp_path, lambda _: Said(STORY, finish="length"), {"prose": PROSE}) as (setting, server):
        assert LOOPS.run(setting).verdict is Verdict.PASSED
        asked = len(server.asked)
        finding = ENDS.run(setting)
        assert len(server.asked) == asked == 24
    assert (finding.verdict, finding.cause) == (Verdict.FAILED, "no-stop")


def test_a_server_without_answers_is_broken_not_failed(tmp_path):
    with setting_of(tmp_path, lambda _: Said(status=400), {"prose": PROSE}) as (setting, _):
        assert LOOPS.run(setting).verdict is Verdict.BROKEN


def test_the_sign_test_counts_prompts_not_answers():
    """Two bad answers to one prompt count once; counted as answers they would be enough."""
    assert not judge_rate(rate_of([[True, True], *[[False, False]] * 11]), None, 0.02, "loop").too_high
    assert judge_rate(rate_of([[True], [True], *[[False]] * 22]), None, 0.02, "loop").too_high


def test_a_rate_of_zero_has_an_upper_bound():
    rate = rate_of([[False, False]] * 40)
    assert rate.sentence == "0 / 80 (< 9%)"
    assert not judge_rate(rate, None, 0.02, "loop").too_high


THINK = {"prompts": ["What is 2 + 2?", "Who is older?"], "max_tokens": 100, "needed": 2}
THOUGHTS = {
    "sound": (Said("Four.", "Two and two are four."), None),
    "unclosed": (Said(None, "Let me think about it, and then about", finish="length"), "does not end"),
    "empty content": (Said(None, "Two and two are four."), "the content is empty"),
    "not apart": (Said("Two and two are four. Four."), "content without reasoning"),
    "markup in content": (Said("<think>Two.</think>Four.", "Two."), "<think> in the content"),
    "markup in reasoning": (Said("Four.", "Two </think> Four"), "</think> in the reasoning"),
    "loop": (Said("Four.", "hairs " * 300), "loop: in the reasoning"),
}


@pytest.mark.parametrize(("said", "what"), THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_must_end_stay_separate_and_not_loop(tmp_path, said, what):
    with setting_of(tmp_path, lambda _: said, {"thinking": THINK}) as (setting, server):
        finding = ON.run(setting)
        assert all(body["chat_template_kwargs"] == {"thinking": True} for body in server.asked)
    assert finding.verdict is (Verdict.FAILED if what else Verdict.PASSED)
    assert what is None or what in finding.excerpts[0].problem


@pytest.mark.parametrize(
    ("said", "sound"),
    [
        (Said("Four."), True),
        (Said("Four.", "Two and two."), False),
        (Said(None, "Four."), False),
        (Said("Two and two</think>Four."), False),
        (Said(""), False),
    ],
)
def test_thinking_off_allows_only_an_answer(tmp_path, said, sound):
    with setting_of(tmp_path, lambda _: said, {"thinking": THINK}) as (setting, server):
        assert OFF.run(setting).verdict is (Verdict.PASSED if sound else Verdict.FAILED)
        assert all(body["chat_template_kwargs"] == {"thinking": False} for body in server.asked)


COPY = {
    "ask": ["Copy this:\n{text}"], "always": ["Warsaw", "Check_Spark_192", "توحيد"], "texts": ["a", "{b}"], "take": 2,
    "allowed": 0, "max_tokens": 60,
}  # fmt: skip


def copies(changed):
    def say(body):
        text = body["messages"][-1]["content"].partition("\n")[2]
        return Said(changed.get(text, text))

    return say


@pytest.mark.parametrize(
    ("text", "written", "what", "at"),
    [
        ("Warsaw", "Warszaw", "U+007A LATIN SMALL LETTER Z instead of U+0061 LATIN SMALL LETTER A", 4),
        ("Check_Spark_192", "Check_SSpark_192", "U+0053 LATIN CAPITAL LETTER S instead of", 7),
        ("توحيد", "توحید", "U+06CC ARABIC LETTER FARSI YEH instead of U+064A ARABIC LETTER YEH", 3),
        ("{b}", "{b", "the end instead of", 2),
    ],
)
def test_the_first_wrong_character_of_a_copy_is_named_and_marked(tmp_path, text, written, what, at):
    with setting_of(tmp_path, copies({text: written}), {"copying": COPY}) as (setting, _):
        finding = prose.COPYING.run(setting)
    assert (finding.verdict, finding.measured, finding.cause) == (Verdict.FAILED, "4 / 5 copied", "copying")
    assert what in finding.excerpts[0].problem.replace("U+0070 LATIN SMALL LETTER P", "")
    assert finding.excerpts[0].start == at or text == "Check_Spark_192"


def test_copies_pass_up_to_the_allowed_number_of_errors(tmp_path):
    with setting_of(tmp_path, copies({}), {"copying": COPY}) as (setting, _):
        assert prose.COPYING.run(setting).verdict is Verdict.PASSED
    (tmp_path / "b").mkdir()
    with setting_of(tmp_path / "b", copies({"a": "b"}), {"copying": {**COPY, "allowed": 1}}) as (setting, _):
        assert prose.COPYING.run(setting).verdict is Verdict.PASSED


WORDS = {"prompts": ["One?", "Two?"], "before": "More text. ", "copies": [0, 3], "max_tokens": 64}
GARBAGES = {
    "words": (STORY, True),
    "emphasis": ("What a day!!! It was the best!!!", True),
    "token 0": ("!!!!!!!!!!!!", False),
    "token 0 later": ("It was a day" + "!" * 20, False),
    "nothing": ("   ", False),
    "no content": (None, False),
    "no letters": ("12 ;; 8$ 9%% ## 77 ,, 1 0 (( )) 3 5 -- 8 ++", False),
    "replaced": ("A caf\ufffd in Paris.", False),
    "leaked": ("It was so.<|im_end|>", False),
}


@pytest.mark.parametrize(("text", "sound"), GARBAGES.values(), ids=GARBAGES)
def test_garbage_is_distinguished_from_words(tmp_path, text, sound):
    with setting_of(tmp_path, lambda _: Said(text), {"garbage": WORDS}) as (setting, server):
        assert GARBAGE.run(setting).verdict is (Verdict.PASSED if sound else Verdict.FAILED)
        asked = sorted(body["messages"][0]["content"] for body in server.asked)
    assert asked == ["More text. More text. More text. Two?", "One?"]


@pytest.mark.parametrize(
    ("text", "sound"),
    [
        (STORY, True),
        (STORY + " The Chinese call it 茶.", True),
        (STORY[:80] + " 然后它走了整个上午 睡在一棵橡树下 挖了起来 直到有东西闪闪发光。", False),
        ("", False),
    ],
)
def test_an_answer_keeps_its_language(tmp_path, text, sound):
    section = {"language": {"prompts": {"latin": ["Tell me a story."]}, "max_tokens": 99}}
    with setting_of(tmp_path, lambda _: Said(text), section) as (setting, _):
        assert LANGUAGE.run(setting).verdict is (Verdict.PASSED if sound else Verdict.FAILED)


@pytest.mark.parametrize("profile", ["kimi", "mini"])
def test_every_profile_has_valid_questions(tmp_path, profile):
    with setting_of(tmp_path, lambda _: Said("x"), {}, profile=profile) as (setting, _):
        for probe in (*prose.PROSE, *thinking.THINKING, prose.COPYING, *prose.GARBAGES):
            assert probe.lacks(setting) is None, probe.name
            assert probe.cost(setting).requests > 0
