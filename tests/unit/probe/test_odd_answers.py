"""Answers in undocumented forms: each is read or reported as unreadable, and none stops the run."""

import json

import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe.answers import Answer, join_chunks, read_chunk, read_plain
from halfbyte.probe.probe import Verdict
from halfbyte.probe.server import _inconsistent


def plain(message=None, choice=None, **body):
    choices = [{"message": {"content": "Hello.", **(message or {})}, "finish_reason": "stop", **(choice or {})}]
    return Answer("1", **_tuples(read_plain({"choices": choices, **body})))


def streamed(*events):
    return Answer("1", **_tuples(join_chunks([read_chunk(json.dumps(one).encode(), 0.0) for one in events])))


def _tuples(fields):
    return {key: tuple(value) if key == "tool_calls" else value for key, value in fields.items()}


def test_content_parts_are_joined():
    parts = [{"type": "text", "text": "Hel"}, "lo", {"type": "image"}]
    assert plain({"content": parts}).text == "Hello"
    assert streamed({"choices": [{"delta": {"content": parts}}]}).text == "Hello"


@pytest.mark.parametrize(
    "message",
    [
        {"content": 5}, {"content": {"text": "x"}}, {"reasoning": {"text": "x"}}, {"tool_calls": {"a": 1}},
        {"tool_calls": ["get_weather"]}, {"tool_calls": "get_weather"},
    ],
)  # fmt: skip
def test_unreadable_answers_are_errors(message):
    assert "expected a" in (plain(message).error or "")
    assert "expected a" in (streamed({"choices": [{"delta": message}]}).error or "")


def test_an_error_with_status_200_is_quoted():
    assert read_plain({"error": {"message": "out of credit"}})["error"] == (
        "the server reports: {'message': 'out of credit'}"
    )
    assert read_plain({"error": None, "choices": [{"text": "x"}]})["content"] == "x"


def test_a_null_error_is_not_an_error():
    assert streamed({"error": None, "choices": [{"delta": {"content": "x"}}]}).error is None
    assert "boom" in (streamed({"error": "boom"}).error or "")


@pytest.mark.parametrize("usage", [[1], "3", {"prompt_tokens": "3", "completion_tokens": None}, None])
def test_invalid_token_counts_are_ignored(usage):
    for answer in (plain(usage=usage), streamed({"choices": [], "usage": usage})):
        assert (answer.prompt_tokens, answer.completion_tokens) == (None, 0)


@pytest.mark.parametrize("logprobs", [[1, 2], "x", {"content": None}, {"content": {"a": 1}}])
def test_log_probabilities_of_unknown_form_are_ignored(logprobs):
    assert plain(choice={"logprobs": logprobs}).token_logprobs == []
    assert streamed({"choices": [{"delta": {}, "logprobs": logprobs}]}).token_logprobs == []


@pytest.mark.parametrize("token", [{"token": "a"}, {"logprob": None}, {"logprob": "much"}, 5,
                                   {"logprob": -0.1, "top_logprobs": [{"token": "a"}]}])  # fmt: skip
def test_a_token_without_a_log_probability_is_reported(token):
    answer = Answer("1", content="a", logprobs={"content": [token]})
    assert "is not a number" in _inconsistent(answer)[0].problem


def test_log_probabilities_that_start_in_a_later_chunk_are_kept():
    late = {"content": [{"token": "b", "logprob": -1}]}
    told = [{"delta": {"content": "a"}, "logprobs": {"content": None}}, {"delta": {"content": "b"}, "logprobs": late}]
    events = [{"choices": [one]} for one in told]
    assert streamed(*events).token_logprobs == [{"token": "b", "logprob": -1}]


def test_streamed_calls_may_have_unusual_indexes_and_arguments():
    answer = streamed({"choices": [{"delta": {"tool_calls": [
        {"index": "a", "function": {"name": "f", "arguments": {"x": 1}}}, {"index": 1, "function": None},
    ]}}]})  # fmt: skip
    assert [one["function"] for one in answer.tool_calls] == [
        {"name": "f", "arguments": '{"x": 1}'}, {"name": "", "arguments": ""}
    ]  # fmt: skip


def test_a_character_split_between_two_chunks_fails(tmp_path):
    """As gateways in JavaScript cut them: whole they are one character, in a stream each half comes alone."""
    from halfbyte.probe.streams import STREAMS

    whole = next(one for one in STREAMS if one.name == "utf8-chunks")
    with setting_of(tmp_path, lambda _: Said("Zażółć \ud83d\ude42"), {}) as (setting, _):
        finding = whole.run(setting)
    assert finding.verdict is Verdict.FAILED
    assert "U+D83D" in finding.excerpts[0].problem


def test_an_exception_in_one_probe_does_not_stop_the_others(probe, monkeypatch):
    from halfbyte.probe import checks

    def stumble(*_):
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(checks, "last_number", stumble)
    result = probe("math", "json")
    assert result["math"].verdict is Verdict.BROKEN
    assert "cannot be judged: KeyError" in result["math"].measured
    assert result["json"].verdict is Verdict.PASSED
