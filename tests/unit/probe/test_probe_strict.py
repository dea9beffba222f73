"""Rules of the tool and prose probes that no other test covers."""

import pytest
from probe_setting import setting_of
from scripted_server import Said, call
from test_probe_tools import PROBES, SECTION, right

from halfbyte.probe.answers import Answer
from halfbyte.probe.judging import Rate, judge_rate
from halfbyte.probe.probe import Verdict
from halfbyte.probe.prose import COPYING, GARBAGES, PROSE, _rate, _unfinished, wrong_text
from halfbyte.probe.thinking import faults_without_thinking, thinking_faults
from halfbyte.probe.tool_cases import streamed, violation, wrong_ids

FORM = "functions.{name}:{index}"


def ids(*names):
    result = wrong_ids([call("f", {}, id=name) for name in names], FORM, Answer("1"))
    return [one.problem for one in result]


def test_call_ids_are_unique_and_increase():
    assert ids("functions.f:3", "functions.f:4") == []
    assert ids("functions.f:0", "functions.f:2") == ["number 2 instead of 1"]
    assert "duplicate id" in ids("functions.f:0", "functions.f:0")
    assert wrong_ids([call("f", {}, id="x"), call("f", {}, id="x")], None, Answer("1"))  # also where any form will do


def test_a_remote_schema_reference_is_not_fetched(monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **_: asked.append(given))
    assert violation({}, {"$ref": "http://127.0.0.1:9/schema.json"}) is None
    assert asked == []


def run(name, tmp_path, say, **limits):
    with setting_of(tmp_path, say, {"tools": {**SECTION, **limits}}) as (setting, _):
        return PROBES[name].run(setting)


def test_some_valid_calls_are_not_enough(tmp_path):
    def half(body):
        said = right(body)
        return Said(calls=[call("weather", {})]) if "Oslo" in str(body["messages"]) else said

    result = run("tool-schema", tmp_path, half)
    assert result.verdict is Verdict.FAILED
    assert result.numbers["valid"]["count"] > 0


def test_a_stream_with_other_text_fails(tmp_path):
    def say(body):
        said = right(body)
        return said if said.calls or not body.get("stream") else Said("Good evening.")

    result = run("tool-streaming", tmp_path, say, streamed=12)
    assert result.verdict is Verdict.FAILED
    assert any("the text differs from the plain answer" in one.problem for one in result.excerpts)


@pytest.mark.parametrize(("share", "verdict"), [(1, Verdict.FAILED), (0.5, Verdict.PASSED)])
def test_the_needed_share_comes_from_the_profile(share, verdict, tmp_path):
    def say(body):
        said = right(body)
        if len(said.calls) > 1 and "Oslo" in str(body["messages"]):
            said.calls = said.calls[:1]
        return said

    assert run("tool-parallel", tmp_path, say, least_parallel=share).verdict is verdict


def test_requests_that_want_a_call_are_streamed_first(tmp_path):
    with setting_of(tmp_path, right, {"tools": SECTION}) as (setting, _):
        assert all(case.should_call for case in streamed(setting))


def test_a_loop_that_was_cut_off_is_counted_once():
    assert _unfinished(Answer("1", content="saliva " * 200, finish_reason="length")) == []
    assert _unfinished(Answer("1", content="It goes on", finish_reason="length"))


def test_failed_requests_are_not_counted():
    answers = [
        Answer("1", content="x", finish_reason="length"),
        Answer("2", content="x", finish_reason="length", error="no"),
    ]
    rate, shown = _rate(answers, 2, _unfinished)
    assert (rate.bad, rate.answers, len(shown)) == ((1,), (1,), 1)


def test_a_reference_doubles_the_cost(tmp_path):
    costs = []
    for name, against in (("a", None), ("b", lambda _: Said("x"))):
        (tmp_path / name).mkdir()
        with setting_of(tmp_path / name, lambda _: Said("x"), {}, against=against) as (setting, _):
            costs.append(PROSE[0].cost(setting).requests)
    assert costs[1] == 2 * costs[0]


def test_a_difference_by_chance_does_not_fail():
    """Six prompts of six may all be worse by chance once in 64 runs, seven once in 128."""
    none = Rate((0,) * 20, (2,) * 20)
    for worse, too_high in ((3, False), (6, False), (7, True)):
        ours = Rate((1,) * worse + (0,) * (20 - worse), (2,) * 20)
        assert judge_rate(ours, none, 0.02, "loop").too_high is too_high


def test_prompts_that_one_side_did_not_answer_are_not_compared():
    ours = Rate((1,) * 10, (2,) * 10)
    assert judge_rate(ours, Rate((0,) * 10, (2,) * 10), 0.02, "loop").too_high
    assert not judge_rate(ours, Rate((0,) * 10, (0,) * 10), 0.02, "loop").too_high
    assert judge_rate(ours, Rate((1,) * 10, (1,) * 10), 0.02, "loop").numbers["prompts_better"] == 10


def test_no_call_at_all_is_a_failure_where_one_is_wanted(tmp_path):
    result = run("tool-schema", tmp_path, lambda _: Said("I would rather talk."))
    assert (result.verdict, result.cause) == (Verdict.FAILED, "tool-parser")


@pytest.mark.parametrize("markup", ["<think>", "</think>", "◁think▷", "◁/think▷"])
def test_every_form_of_a_thought_s_markup_is_found(markup):
    assert thinking_faults(Answer("1", content=f"Yes. {markup}", reasoning="Hm."))
    assert faults_without_thinking(Answer("1", content=f"Yes. {markup}"))
    assert thinking_faults(Answer("1", content="Yes.", reasoning=f"Hm. {markup}"))


def test_a_thought_that_loops_is_wrong():
    loop = "saliva " * 200
    assert "loop" in thinking_faults(Answer("1", content="Yes.", reasoning=loop))[0].problem
    assert "loop" in faults_without_thinking(Answer("1", content=loop))[0].problem


def test_a_thought_that_ends_and_one_that_does_not_are_told_apart():
    ends = thinking_faults(Answer("1", reasoning="Hm.", finish_reason="stop"))[0].problem
    assert (ends, thinking_faults(Answer("1", reasoning="Hm.", finish_reason="length"))[0].problem) == (
        "the thought ends, but the content is empty", "the thought does not end, and the content is empty"
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "!" * 7, "Yes!!!!!!", "= 12 + {34} * [56] / <78> = 90 % 12"])
def test_garbage_is_found(text):
    assert wrong_text(Answer("1", content=text))


def test_words_are_not_garbage():
    assert wrong_text(Answer("1", content="Good morning!!! It is 5 o'clock, and the birds sing.")) == []


def test_copies_are_asked_for_in_turns_with_the_known_failures_first(tmp_path):
    section = {
        "ask": ["A {text}", "B {text}"],
        "always": ["one"],
        "texts": ["two"],
        "take": 1,
        "allowed": 0,
        "max_tokens": 8,
    }
    said = {"A one": "one", "B two": "tow"}
    with setting_of(tmp_path, lambda body: Said(said[body["messages"][0]["content"]]), {"copying": section}) as (
        setting,
        _,
    ):
        result = COPYING.run(setting)
    assert (result.verdict, result.measured) == (Verdict.FAILED, "1 / 2 copied")


def test_the_text_before_a_prompt_fits_the_context(tmp_path):
    section = {"prompts": ["Hello?"], "before": "word " * 100, "copies": [500], "max_tokens": 64}
    with setting_of(tmp_path, lambda _: Said("Good morning to you."), {"garbage": section}) as (setting, server):
        GARBAGES[0].run(setting)
        assert len(server.asked[0]["messages"][0]["content"]) < setting.context


def test_another_script_is_found(tmp_path):
    section = {"prompts": {"greek": ["a"]}, "max_tokens": 64}
    with setting_of(tmp_path, lambda _: Said("These letters are all Latin."), {"language": section}) as (setting, _):
        assert GARBAGES[1].run(setting).verdict is Verdict.FAILED
