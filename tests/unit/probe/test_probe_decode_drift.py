"""Drift during decoding: compared up to the first different token, and greedy tokens that are not the most likely."""

import math

import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe.drift import DECODE_DRIFT, same_text
from halfbyte.probe.drift_measures import Place
from halfbyte.probe.probe import Verdict

SECTION = {
    "prompts": ["Once", "Then"], "tokens": 4, "most_kl": 0.05, "least_stable_top1": 0.8, "most_error_p95": 1,
    "most_far": 0.1, "reason": "a test",
}  # fmt: skip
WORDS = ["the", "fox", "ran", "home"]
SURE = 0.9


def logs(shares):
    return {name: math.log(share) for name, share in shares.items()}


def served(*, sure=SURE, words=WORDS, chosen=None, tells=True):
    """A server that writes four words, each its most likely token, except for `chosen` others."""

    def say(body):
        assert body["max_tokens"] == len(WORDS) and body["temperature"] == 0 and "echo" not in body
        tops = [logs({word: sure, "cat": (1 - sure) / 2}) for word in words]
        said = chosen or words
        told = {
            "tokens": said,
            "token_logprobs": [top.get(word, math.log(0.01)) for top, word in zip(tops, said, strict=True)],
            "top_logprobs": tops,
        }
        return Said(" ".join(said), logprobs=told if tells else None)

    return say


def decode_drift(tmp_path, ours, theirs):
    with setting_of(tmp_path, ours, {"decode-drift": SECTION}, against=theirs) as (setting, _):
        return DECODE_DRIFT.run(setting)


def test_equal_servers_pass_over_every_token(tmp_path):
    result = decode_drift(tmp_path, served(), served())
    assert (result.verdict, result.excerpts) == (Verdict.PASSED, ())
    assert (result.numbers["tokens"], result.numbers["compared"], result.numbers["generated"]) == (8, 8, 8)
    assert result.numbers["kl_at_least"] == 0


def test_other_predictions_of_the_same_words_fail(tmp_path):
    result = decode_drift(tmp_path, served(sure=0.4), served())
    assert (result.verdict, result.cause) == (Verdict.FAILED, "drift")
    assert any("KL" in one for one in result.numbers["missed"])
    assert result.excerpts


def test_tokens_after_the_first_difference_are_not_compared(tmp_path):
    """From the second word on the texts differ, so predictions there are not comparable."""
    result = decode_drift(tmp_path, served(words=["the", "dog", "sat", "down"]), served())
    assert (result.numbers["compared"], result.numbers["generated"]) == (4, 8)
    assert result.verdict is Verdict.FAILED  # half of the compared tokens have another top-1


def test_a_different_token_is_scored_by_the_reference_token():
    ours = [Place("dog", math.log(0.5), logs({"dog": 0.5, "fox": 0.4}))]
    theirs = [Place("fox", math.log(0.6), logs({"fox": 0.6, "dog": 0.3}))]
    (result,) = same_text(ours, theirs)
    assert result.token == "fox"
    assert result.error == pytest.approx(math.log(0.6 / 0.4))


def test_a_greedy_token_that_is_not_top_1_fails(tmp_path):
    """Like a repetition penalty: probabilities are the model's, but the written token is not the most likely."""
    result = decode_drift(tmp_path, served(chosen=["the", "fox", "ran", "cat"]), served())
    assert (result.verdict, result.cause) == (Verdict.FAILED, "greedy")
    assert result.measured == "2 of 2 greedy texts have a token that is not top-1"
    shown = result.excerpts[0]
    assert shown.text[shown.start : shown.end] == "cat"


@pytest.mark.parametrize("silent", ["ours", "theirs"])
def test_a_server_without_log_probabilities_is_skipped(tmp_path, silent):
    sides = {name: served(tells=name != silent) for name in ("ours", "theirs")}
    result = decode_drift(tmp_path, sides["ours"], sides["theirs"])
    assert result.verdict is Verdict.SKIPPED
    assert ("the server" if silent == "ours" else "the reference") in result.measured + str(result)


def test_without_a_reference_the_reason_names_the_option(tmp_path):
    with setting_of(tmp_path, served(), {"decode-drift": SECTION}) as (setting, _):
        assert "--against" in (DECODE_DRIFT.lacks(setting) or "")
