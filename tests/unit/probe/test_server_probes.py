"""Every server fault with a probe is found by it; a healthy server passes all of them."""

import pytest
from fake_openai import Say

from halfbyte.probe.probe import Verdict

SERVER = ["stop-strings", "max-tokens", "logprobs", "usage", "stream-equals-plain", "utf8-chunks", "concurrent-streams",
          "cancellation", "same-again", "same-in-batch", "same-warm", "malformed"]  # fmt: skip


def test_a_healthy_server_passes_all_server_probes(fake, probe):
    fake.token_delay = 0.001
    result = probe("server")
    assert list(result) == SERVER
    assert {name: one.measured for name, one in result.items() if one.verdict is not Verdict.PASSED} == {}
    assert fake.most_busy >= 4


@pytest.mark.parametrize(
    ("fault", "name", "what"),
    [
        ("ignores stop", "stop-strings", "contains the stop string"),
        ("ignores max_tokens", "max-tokens", "tokens, but 1 were allowed"),
        ("nan logprobs", "logprobs", "nan"),
        ("not greedy", "logprobs", "is not top-1"),
        ("no usage", "usage", "no usage"),
        ("miscounts", "usage", "/tokenize"),
        ("drops a chunk", "stream-equals-plain", "instead of"),
        ("drops a chunk", "utf8-chunks", "instead of"),
        ("no done", "concurrent-streams", "without [DONE]"),
        ("swaps streams", "concurrent-streams", "the answer to another prompt"),
        ("no done", "stream-equals-plain", "without [DONE]"),
        ("cuts characters", "utf8-chunks", "split between two chunks"),
        ("bad bytes", "utf8-chunks", "not valid UTF-8"),
        ("closes streams", "concurrent-streams", "without [DONE]"),
        ("runs on", "cancellation", "still running"),
        ("not repeatable", "same-again", "instead of"),
        ("batch differs", "same-in-batch", "instead of"),
        ("warm differs", "same-warm", "instead of"),
        ("accepts anything", "malformed", "answered as if it were valid"),
        ("500", "malformed", "HTTP 500"),
    ],
)
def test_a_fault_is_found(fault, name, what, fake, probe, monkeypatch):
    from halfbyte.probe import streams

    monkeypatch.setattr(streams, "_CALM_S", 1.0)
    fake.token_delay = 0.003
    fake.wrong.add(fault)
    finding = probe(name)[name]
    assert finding.verdict is Verdict.FAILED, finding
    assert any(what in one.problem for one in finding.excerpts), finding.excerpts
    assert finding.cause


def test_a_difference_at_a_near_tie_is_reported_but_passes():
    from halfbyte.probe.answers import Answer
    from halfbyte.probe.server import compare

    def told(margin):
        top = [{"token": "b", "logprob": -0.7}, {"token": "c", "logprob": -0.7 - margin}]
        return {"content": [{"token": "a", "top_logprobs": top}, {"token": "b", "top_logprobs": top}]}

    other = Answer("2", content="ac", finish_reason="stop")
    tie = compare([(Answer("1", content="ab", finish_reason="stop", logprobs=told(0.01)), other)], "equal")
    assert tie.verdict is Verdict.PASSED
    assert "1 with a near tie" in tie.measured
    sure = compare([(Answer("1", content="ab", finish_reason="stop", logprobs=told(3.0)), other)], "equal")
    assert sure.verdict is Verdict.FAILED


def test_canceled_requests_are_sent_again_by_a_later_run(fake, probe):
    """The trace has their answers, but it is the hanging up that is looked at."""
    probe("cancellation")
    once = len(fake.asked)
    probe("cancellation")
    assert len(fake.asked) == 2 * once


@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_no_usable_answers_are_an_infrastructure_failure(fault, fake, probe):
    if fault == "fails":
        fake.fails[""] = 503
    else:
        fake.hangs[""] = 0.5
    result = probe("math", "same-again", timeout_s=0.2)
    assert result["math"].verdict is Verdict.BROKEN
    # One that does not say hello within the time for a request either is not asked for more.
    assert result["same-again"].verdict is (Verdict.BROKEN if fault == "fails" else Verdict.SKIPPED)


def test_missing_log_probabilities_are_reported_not_failed(fake, probe):
    """Good servers have none, and agents do not need them; unchecked properties do not count as passed either."""
    fake.wrong.add("no logprobs")
    finding = probe("logprobs")["logprobs"]
    assert finding.verdict is Verdict.SKIPPED
    assert "reports no log-probabilities" in finding.measured


def test_max_tokens_is_checked_without_usage(fake, probe):
    fake.wrong |= {"no usage", "ignores max_tokens"}
    assert probe("max-tokens")["max-tokens"].verdict is Verdict.FAILED
    fake.wrong.remove("ignores max_tokens")
    assert probe("max-tokens")["max-tokens"].verdict is Verdict.PASSED


def test_a_stop_that_comes_too_early_fails(fake, probe):
    real = fake.say
    fake.say = lambda body: Say("") if body.get("stop") else real(body)
    finding = probe("stop-strings")["stop-strings"]
    assert finding.verdict is Verdict.FAILED
    assert "did not stop just before" in finding.excerpts[0].problem
