"""Healthy servers that are unlike vLLM, busy, small or slow: distinguished from broken ones, within the budget."""

import time

import pytest
from fake_openai import Handler, Say
from probe_setting import setting_of
from scripted_server import Said, call

from halfbyte.probe.probe import Verdict
from halfbyte.probe.profiles import load_profile
from halfbyte.probe.thinking import THINKING
from halfbyte.probe.tool_calls import TOOLS


def test_a_server_that_accepts_any_model_name_passes_with_a_note(server, probe, monkeypatch):
    real = Handler._problem
    lenient = lambda self, body: None if body.get("model") != "m" and "max_tokens" in body else real(self, body)  # noqa: E731
    monkeypatch.setattr(Handler, "_problem", lambda self, body: lenient(self, body) if "messages" in body else "no")
    result = probe("malformed")["malformed"]
    assert (result.verdict, result.numbers["any_model_name"]) == (Verdict.PASSED, True)
    assert "any model name is accepted" in result.measured


def test_requests_of_other_clients_are_not_counted(fake, probe, monkeypatch):
    from halfbyte.probe import streams

    monkeypatch.setattr(streams, "_CALM_S", 0.5)
    fake.running, fake.token_delay = 5, 0.02  # so slow that a stream is canceled before its end, also on a busy machine
    assert probe("cancellation")["cancellation"].verdict is Verdict.PASSED
    fake.wrong.add("runs on")
    assert probe("cancellation")["cancellation"].verdict is Verdict.FAILED


def test_streams_that_cannot_be_canceled_do_not_pass(fake, probe):
    fake.answers[load_profile("kimi").questions["server"]["endless"]] = "Two words"
    assert probe("cancellation")["cancellation"].verdict is Verdict.SKIPPED


def test_a_small_context_skips_probes_instead_of_failing(fake, probe):
    fake.limit = 4096
    result = probe("thinking-off", "json", "context-limit")
    assert result["thinking-off"].verdict is Verdict.SKIPPED
    assert "too long for a context of 4,096" in result["thinking-off"].measured
    assert result["json"].verdict is result["context-limit"].verdict is Verdict.PASSED


def test_a_budget_holds_though_the_server_hangs(fake, probe):
    fake.hangs[""] = 60
    began = time.monotonic()
    result = probe("math", "json", budget="3s", timeout_s=50.0)
    assert time.monotonic() - began < 12
    assert not [one for one in result.values() if one.verdict is Verdict.PASSED]


def test_a_hung_engine_ends_the_run(fake, probe, monkeypatch):
    from halfbyte.probe import run

    monkeypatch.setattr(run, "_ALIVE_S", 0.3)
    fake.hangs[""] = 5
    result = probe("math", "json", "unicode-echo", timeout_s=0.3)
    assert [one.verdict for one in result.values()].count(Verdict.BROKEN) == 1
    assert "does not answer any more" in result["unicode-echo"].measured
    assert sum("capital of France" in str(one) for one in fake.asked) == 1  # late requests are not repeated


def test_rate_limits_are_waited_for(fake, probe):
    real, left = fake.say, [4]

    def busy(body):
        if "17 * 23" in str(body) and left[0]:
            left[0] -= 1
            fake.fails["17 * 23"] = 429
        else:
            fake.fails.pop("17 * 23", None)
        return real(body)

    original = Handler._answer

    def answer(self, body):
        busy(body)
        return original(self, body)

    Handler._answer = answer
    try:
        assert probe("math")["math"].verdict is Verdict.PASSED
    finally:
        Handler._answer = original
    assert left == [0]


def test_missing_image_support_may_be_reported_with_status_500(fake, server, probe, monkeypatch):
    text = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
    monkeypatch.setattr(Handler, "_answer", lambda self, _: self._json({"error": {"message": text}}, 500))
    assert probe("vision")["vision"].verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("must", "said", "verdict"),
    [
        (False, Said("It is 5."), Verdict.SKIPPED),
        (True, Said("It is 5."), Verdict.FAILED),
        (False, Said("Hm.</think>It is 5."), Verdict.FAILED),
        (False, Said("It is 5.", reasoning="Hm."), Verdict.PASSED),
        (False, Said(None, reasoning="Hm.", finish="length"), Verdict.FAILED),
    ],
)
def test_a_model_without_thinking_is_skipped_if_the_profile_allows_it(must, said, verdict, tmp_path):
    section = {"prompts": ["a", "b"], "max_tokens": 64, "needed": 2, "must_think": must}
    with setting_of(tmp_path, lambda _: said, {"thinking": section}) as (setting, _):
        assert THINKING[0].run(setting).verdict is verdict


def test_streams_without_tool_calls_give_no_verdict_on_calls(tmp_path):
    streaming = next(one for one in TOOLS if one.name == "tool-streaming")
    with setting_of(tmp_path, lambda _: Said("I would rather talk."), {}) as (setting, _):
        assert streaming.run(setting).verdict is Verdict.SKIPPED
    (tmp_path / "b").mkdir()
    with setting_of(tmp_path / "b", lambda _: Said(calls=[call("f", {})]), {}) as (setting, _):
        assert streaming.run(setting).verdict is Verdict.PASSED


def test_an_answer_with_a_thought_is_still_an_answer(fake, probe):
    fake.answers["17 * 23"] = Say("391", "Let me see.")
    assert probe("math")["math"].verdict is Verdict.PASSED
