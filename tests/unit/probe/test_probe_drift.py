"""Drift: exact numbers on small distributions, the bound below the true divergence, and verdicts of two servers."""

import math

import numpy as np
import pytest
from probe_setting import setting_of
from scripted_server import Said

from halfbyte.probe.drift import DRIFT
from halfbyte.probe.drift_measures import (
    Place,
    kl_at_least,
    read_places,
    step,
    summary,
)
from halfbyte.probe.probe import Verdict

SECTION = {
    "texts": ["one two three four", "five six seven eight"], "most_kl": 0.05, "least_stable_top1": 0.9,
    "most_error_p95": 1, "most_far": 0.1, "reason": "a test",
}  # fmt: skip
TOP = {"a": 0.55, "b": 0.3, "c": 0.05}


def logs(top):
    return {name: math.log(share) for name, share in top.items()}


def test_the_kl_bound_is_exact_if_all_tokens_are_reported():
    p, q = {"a": 0.7, "b": 0.3}, {"a": 0.5, "b": 0.5}
    exact = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert kl_at_least(logs(p), logs(q), ["a", "b"]) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_the_kl_bound_never_exceeds_the_divergence(seed):
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(200, 0.3)) + 1e-9 for _ in range(2))
    p, q = p / p.sum(), q / q.sum()
    exact = float((p * np.log(p / q)).sum())
    named = [{str(n): float(np.log(x[n])) for n in np.argsort(-x)[:20]} for x in (p, q)]
    result = kl_at_least(named[0], named[1], [name for name in named[0] if name in named[1]])
    assert 0 <= result <= exact + 1e-6


def test_a_step_has_error_kl_and_top_1():
    mine, its = Place("a", math.log(0.2), logs({"a": 0.2, "b": 0.7})), Place("a", math.log(0.6), logs(TOP))
    result = step(mine, its)
    assert result.error == pytest.approx(math.log(3))
    assert (result.same_first, result.stable, result.named, result.overlap) == (False, True, 2, 1)
    numbers = summary([result, step(its, its)])
    assert (numbers["stable_top1"], numbers["tokens"], numbers["error_most"]) == (0.5, 2, pytest.approx(math.log(3)))
    assert numbers["perplexity_ratio"] == pytest.approx(math.sqrt(3))


def test_tokens_of_partial_characters_are_merged():
    """Two different bytes are written alike: they count among the others."""
    mine, its = Place("a", -1, logs({"a": 0.4, "\ufffd": 0.6})), Place("a", -1, logs({"a": 0.4, "\ufffd": 0.5}))
    assert step(mine, its).named == 1
    assert step(mine, its).kl == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    "told",
    [None, {}, {"tokens": ["a"], "token_logprobs": [None]}, {"tokens": ["a", "b"], "token_logprobs": [None, -1]}],
)
def test_missing_log_probabilities_give_no_places(told):
    assert read_places(told) is None


def served(top=None, *, worse=(), split=str.split, tells=True):
    """Return a server with the same most likely tokens everywhere; `worse` words are unlikely there."""

    def say(body):
        assert body["echo"] and body["max_tokens"] == 1
        words = [*split(body["prompt"]), "end"]
        tops = [{**logs(top or TOP), word: math.log(0.001 if word in worse else 0.06)} for word in words]
        told = {
            "tokens": words,
            "token_logprobs": [None, *[one[word] for one, word in zip(tops, words, strict=True)][1:]],
            "top_logprobs": [None, *tops[1:]],
        }
        return Said(body["prompt"], logprobs=told if tells else None)

    return say


def drift(tmp_path, ours, theirs):
    with setting_of(tmp_path, ours, {"drift": SECTION}, against=theirs) as (setting, _):
        return DRIFT.run(setting)


def test_equal_servers_pass_with_nothing_shown(tmp_path):
    result = drift(tmp_path, served(), served())
    assert (result.verdict, result.excerpts) == (Verdict.PASSED, ())
    assert (result.numbers["kl_at_least"], result.numbers["stable_top1"], result.numbers["tokens"]) == (0, 1, 6)


@pytest.mark.parametrize(
    ("top", "worse", "missed"),
    [
        ({"a": 0.2, "b": 0.7, "c": 0.05}, (), "KL"),
        ({"a": 0.44, "b": 0.46, "c": 0.05}, (), "top-1"),
        (None, ("three", "six"), "p95"),
    ],
)
def test_each_limit_fails_alone_or_with_others(tmp_path, top, worse, missed):
    result = drift(tmp_path, served(top, worse=worse), served())
    assert (result.verdict, result.cause) == (Verdict.FAILED, "drift")
    assert any(missed in one for one in result.numbers["missed"])
    assert result.excerpts


def test_the_worst_token_is_marked(tmp_path):
    result = drift(tmp_path, served(worse=("three",)), served())
    shown = result.excerpts[0]
    assert shown.text[shown.start : shown.end] == "three"


def test_other_tokens_fail_at_the_first_that_differs(tmp_path):
    result = drift(tmp_path, served(split=lambda text: text.replace("three", "th ree").split()), served())
    assert (result.verdict, result.cause) == (Verdict.FAILED, "tokenizer")
    assert result.excerpts[0].text[result.excerpts[0].start :].startswith("th")


def test_a_server_that_reports_no_prompt_log_probabilities_is_skipped(tmp_path):
    assert drift(tmp_path, served(tells=False), served()).verdict is Verdict.SKIPPED
    (tmp_path / "b").mkdir()
    assert drift(tmp_path / "b", lambda _: Said(status=400), served()).verdict is Verdict.SKIPPED
    (tmp_path / "c").mkdir()
    with setting_of(tmp_path / "c", served(), {"drift": SECTION}) as (setting, _):
        assert "--against" in DRIFT.lacks(setting)


def test_only_tokens_that_the_reference_expects_are_scored(tmp_path):
    """An unpredictable code is a guess on both sides: its error carries no information."""
    likely = Place("a", math.log(0.6), logs(TOP))
    odd = {"x": 0.02, "a": 0.5}
    guess, other = Place("x", math.log(0.02), logs(odd)), Place("x", math.log(0.0001), logs({"x": 0.0001, "b": 0.9}))
    numbers = summary([step(likely, likely), step(other, guess)])
    assert (numbers["tokens"], numbers["kl_at_least"], numbers["error_most"], numbers["stable_top1"]) == (1, 0, 0, 1)
    assert numbers["tokens_everywhere"] == 2 and numbers["kl_everywhere"] > 0.04
    assert summary([step(guess, other), step(other, likely)])["tokens"] == 1  # the reference decides, not the server


def test_texts_without_plausible_tokens_are_skipped(tmp_path):
    words = tuple(" ".join(SECTION["texts"]).split())
    assert drift(tmp_path, served(worse=words), served(worse=words)).verdict is Verdict.SKIPPED


def without_echo(_):
    """Behave like servers without `echo`: return only the generated text."""
    return Said("x", logprobs={"tokens": ["x"], "token_logprobs": [-0.1], "top_logprobs": [{"x": -0.1}]})


def test_a_server_that_ignores_echo_is_skipped_and_named(tmp_path):
    for name, ours, theirs in (("the server", without_echo, served()), ("the reference", served(), without_echo),
                               ("the server", without_echo, without_echo)):  # fmt: skip
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        result = drift(folder, ours, theirs)
        assert result.verdict is Verdict.SKIPPED
        assert result.measured.startswith(f"{name} ignores echo: it reports log-probabilities only of its answer")


@pytest.mark.parametrize("profile", ["kimi", "mini"])
def test_every_profile_has_texts(tmp_path, profile):
    with setting_of(tmp_path, served(), {}, against=served(), profile=profile) as (setting, _):
        assert DRIFT.lacks(setting) is None
        assert DRIFT.cost(setting).requests > 8
