"""The evaluation suites as data."""

import json
import os

import pytest
from known_answers import ROOT

from halfbyte.errors import UsageError
from halfbyte.evaluate import harness, suites
from halfbyte.evaluate.suites import load_suite, parse_suite, suite_hash, suite_names

GOOD = suites._FOLDER.joinpath("mini.yaml").read_text()


def test_every_suite_loads():
    cards = {"kimi-card", "kimi-card-3shot", "kimi-card-generative", "mxfp4-card"}
    mini = {"mini", "mini-choices", "mini-coding", "mini-generative"}
    assert {*suite_names()} == cards | mini | {"chat", "coding"}
    for name in suite_names():
        suite = parse_suite(suites._FOLDER.joinpath(f"{name}.yaml").read_text(), name)
        assert suite.name == name
        assert all(task.generative in (None, *suite_names()) for task in suite.tasks)


def test_the_cards_settings():
    card, alternative, mxfp4 = (load_suite(name) for name in ("kimi-card", "kimi-card-3shot", "mxfp4-card"))
    assert [(task.task, task.shots) for task in card.tasks] == [("gsm8k_cot", 8), ("mmlu", None)]
    assert (card.concurrency, card.apis, [one.python for one in card.passes]) == (4, ["completions"], [0])
    assert [(task.task, task.shots) for task in alternative.tasks] == [("gsm8k_cot", 3)]
    assert len(alternative.passes) == 3
    assert [(task.task, task.shots) for task in mxfp4.tasks] == [("gsm8k", 3)]
    assert [one.fewshot for one in mxfp4.passes] == [42, 1234, 7777]


def test_the_suites_with_programs_need_a_sandbox():
    assert {name for name in suite_names() if load_suite(name).needs_sandbox} == {"coding", "mini-coding"}


def test_an_unknown_suite_is_refused():
    with pytest.raises(UsageError, match="unknown suite 'kimi-crad'") as error:
        load_suite("kimi-crad")
    assert "kimi-card" in error.value.fix


@pytest.mark.parametrize("change", [("shots: 5", "shot: 5"), ("kind: choose", "kind: chose"), ("passes:", "runs:")])
def test_an_unknown_suite_key_is_an_error(change):
    with pytest.raises(UsageError, match="suite:"):
        parse_suite(GOOD.replace(*change), "mini")


def test_the_hash_changes_with_the_settings_and_the_files(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text("a")
    suite, other = parse_suite(GOOD, "mini"), parse_suite(GOOD.replace("shots: 5", "shots: 4"), "mini")
    first = suite_hash(suite, [path])
    assert suite_hash(other, [path]) != first
    path.write_text("b")
    assert suite_hash(suite, [path]) != first


@pytest.mark.parametrize("before", [None, "0"])
def test_lm_eval_settings_do_not_leak_into_the_environment(monkeypatch, tmp_path, before):
    """Later requests of the same process to an engine or the Hub must not be offline because of it, not even after an
    error.
    """
    pytest.importorskip("lm_eval")
    seen = []
    own = harness._own_cache
    monkeypatch.setattr(harness, "_own_cache", lambda: seen.append(os.environ["HF_HUB_OFFLINE"]) or own())
    if before is None:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", before)
    variables = dict(os.environ)
    harness.load_harness(load_suite("mini-generative"), ROOT)
    assert seen == ["1"] and dict(os.environ) == variables
    monkeypatch.setattr(harness, "_load", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        harness.load_harness(load_suite("mini-generative"), ROOT)
    assert dict(os.environ) == variables


def test_list_prints_all_suites_and_sends_nothing(halfbyte):
    code, out, words = halfbyte("eval", "--list", "--json")
    assert code == 0, words
    assert [row["name"] for row in json.loads(out)] == suite_names()
    assert all(row["tasks"] and row["description"] for row in json.loads(out))
    code, _, words = halfbyte("eval")
    assert code == 2
    assert "missing argument 'URL'" in words
