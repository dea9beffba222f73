"""`--baseline`: an earlier run replaces the reference if it has the same items; server properties are compared."""

import json

import pytest
from known_answers import LIMIT, ROOT, WORLD, knows, saved

pytest.importorskip("lm_eval")


def test_a_baseline_replaces_the_reference(start_fake, mini, tmp_path):
    (good, a), (bad, b) = start_fake(), start_fake()
    knows(a)
    knows(b, wrong=set(range(10)))
    assert mini(good, out="good")[0] == 0
    asked = len(a.items())
    code, _, said = mini(bad, "--baseline", tmp_path / "good", out="bad")
    assert code == 1 and "REGRESSION: kimi_mini_gsm8k" in said
    assert len(a.items()) == asked


def test_a_baseline_with_other_settings_is_refused(fake, mini, halfbyte, tmp_path):
    url, server = fake
    knows(server)
    mini(url)
    asked = len(server.items())
    other = ("--data-dir", ROOT, "--baseline", tmp_path / "out", "-o", tmp_path / "other")
    for argv in (("--suite", "mini-generative", "--limit", 5), ("--suite", "mini", "--limit", LIMIT)):
        code, _, said = halfbyte("eval", url, *argv, *other)
        assert code == 2 and "baseline" in said
    assert len(server.items()) == asked


@pytest.fixture
def good(fake, mini, tmp_path):
    """A finished run, its server, and the arguments to compare with it."""
    url, server = fake
    knows(server)
    assert mini(url, out="good")[0] == 0
    return url, server, ("--baseline", tmp_path / "good")


def change(folder, edit):
    head = saved(folder)
    edit(head)
    (folder / "eval.json").write_text(json.dumps(head))


def test_the_same_server_again_differs_in_nothing(good, mini, tmp_path):
    url, _, baseline = good
    code, _, said = mini(url, *baseline)
    assert code == 0 and "differ in more" not in said
    result = saved(tmp_path / "out")
    assert result["differences"] == []
    assert result["baseline"]["candidate"]["fingerprint"] == result["candidate"]["fingerprint"]


def test_differences_between_servers_are_reported(good, mini, tmp_path):
    url, server, baseline = good
    server.version = "1.1"
    server.models[0]["max_model_len"] = 50_000
    server.models[0]["root"] = "/another-checkpoint"  # that may differ
    _, _, said = mini(url, *baseline, "--concurrency", 2)
    for one in ("version: 1.1 against 1.0", "max_model_len: 50000 against 100000", "concurrency: 2 against 4"):
        assert f"the servers differ in more than the checkpoint: {one}" in said
        assert any(one in sentence for sentence in saved(tmp_path / "out")["differences"])
    assert "another-checkpoint" not in said


def test_different_tokenization_is_refused_before_any_item(good, mini):
    url, server, baseline = good
    server.extra_token, asked = True, len(server.items())
    code, _, said = mini(url, *baseline)
    assert code == 1 and "tokenize the same prompt differently" in said
    assert len(server.items()) == asked


def test_a_baseline_with_other_rows_is_refused_before_any_item(good, halfbyte, tmp_path):
    url, server, baseline = good
    (tmp_path / "data" / "evals").mkdir(parents=True)
    for name in ("tasks", "world", "word_problems"):
        (tmp_path / "data" / "evals" / name).symlink_to(ROOT / "evals" / name)
    asked = len(server.items())
    argv = ("eval", url, "--suite", "mini-generative", "--limit", LIMIT, "--data-dir", tmp_path / "data", *baseline)
    assert halfbyte(*argv, "-o", tmp_path / "same")[0] == 0, "the same rows in another folder are the same"
    sent = len(server.items())
    (tmp_path / "data" / "evals" / "world").unlink()
    (tmp_path / "data" / "evals" / "world").mkdir()
    rows = [{**row, "answer": 3 - row["answer"]} for row in WORLD]
    for name in ("test", "dev"):
        (tmp_path / "data" / "evals" / "world" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, _, said = halfbyte(*argv, "-o", tmp_path / "other")
    assert code == 2 and "the baseline ran kimi_mini_mmlu_generative on different data" in said
    assert len(server.items()) == sent > asked


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda head: head["suite"].update(name="mini"), "the baseline ran the suite 'mini'"),
        (lambda head: head["suite"].update(hash="0"), "ran another version of the suite"),
        (lambda head: head["suite"]["data"].clear(), "on different data"),
        (lambda head: head["arguments"].update(limit=None), "the baseline ran without --limit"),
        (lambda head: head.pop("candidate"), "eval.json is not a valid eval record: candidate is missing"),
        (lambda head: head["tasks"].pop(), "the baseline has 48 items, but its eval.json lists 24"),
        (lambda head: head.pop("tasks"), "eval.json is not a valid eval record: tasks is missing"),
        (lambda head: head.clear(), "eval.json is not a valid eval record: halfbyte is missing"),
    ],
)
def test_a_baseline_of_something_else_or_broken_is_refused(good, mini, tmp_path, edit, sentence):
    url, server, baseline = good
    change(tmp_path / "good", edit)
    asked = len(server.items())
    code, _, said = mini(url, *baseline)
    assert code == 2 and sentence in said
    assert len(server.items()) == asked and not (tmp_path / "out").exists()


def test_a_baseline_that_is_not_there_or_is_the_output_is_refused(good, mini, tmp_path):
    url, _, baseline = good
    before = (tmp_path / "good" / "eval.json").read_bytes()
    assert "would overwrite the baseline" in mini(url, *baseline, out="good")[2]
    assert (tmp_path / "good" / "eval.json").read_bytes() == before
    for content in (None, b"", b"[]", b'{"format"'):
        (tmp_path / "none").mkdir(exist_ok=True)
        if content is not None:
            (tmp_path / "none" / "eval.json").write_bytes(content)
        code, _, said = mini(url, "--baseline", tmp_path / "none")
        assert code == 2 and "no results of a finished run" in said


@pytest.mark.parametrize("score", [7.0, -0.5, float("nan"), float("inf"), "1", None, True])
def test_a_baseline_with_scores_that_are_none_is_refused(good, mini, tmp_path, score):
    url, server, baseline = good
    file = tmp_path / "good" / "eval.jsonl"
    first, *others = file.read_text().splitlines()
    row = json.loads(first)
    row["scores"]["exact_match,flexible-extract"] = score
    file.write_text("\n".join([json.dumps(row), *others]) + "\n")
    asked = len(server.items())
    code, _, said = mini(url, *baseline)
    assert code == 2 and f"has the score {score!r} for exact_match,flexible-extract" in said
    assert len(server.items()) == asked
