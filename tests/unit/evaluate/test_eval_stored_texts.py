"""Stored answers: complete, for any content, without keys; a later run reads the same."""

import json

import pytest
from known_answers import LIMIT, WORDS, knows, lines, saved

from halfbyte.endpoint.client import values_without_keys

pytest.importorskip("lm_eval")


def test_half_a_surrogate_pair_does_not_lose_the_run(fake, mini, tmp_path):
    url, server = fake
    knows(server)
    question = f"Question: {WORDS[3]['question']}\nAnswer:"
    server.answers[question] += " \ud83d"
    server.salt = "\ud83d "  # the probes too
    assert mini(url)[0] == 0
    assert lines(tmp_path / "out")[3]["output"].endswith("\ud83d")
    first, asked = saved(tmp_path / "out")["tasks"], len(server.items())
    assert mini(url)[0] == 0
    assert saved(tmp_path / "out")["tasks"] == first and len(server.items()) == asked


def test_results_have_no_key_even_where_the_server_repeats_it(fake, mini, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    url, server = fake
    knows(server)
    server.repeats_key = True
    mini(url)
    assert "Bearer ***" in lines(tmp_path / "out")[0]["output"]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["eval.json", "eval.jsonl", "requests.jsonl"]
    assert all(b"very-secret" not in path.read_bytes() for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize("key", ["1234", "EMPTY", "e", "answer", "requests", "localhost"])
def test_a_short_or_common_key_changes_nothing_that_is_written_down(fake, mini, tmp_path, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    url, server = fake
    knows(server)
    assert mini(url)[0] == 0
    first, asked = lines(tmp_path / "out"), len(server.items())
    assert asked == 2 * LIMIT
    code, _, said = mini(url)
    assert code == 0 and "cannot be read" not in said and len(server.items()) == asked
    assert lines(tmp_path / "out") == first


def test_only_texts_lose_the_key(monkeypatch):
    monkeypatch.setenv("HALFBYTE_API_KEY", "12345678")
    monkeypatch.setenv("OPENAI_API_KEY", 'a"b\\cdefgh')
    record = {"12345678": 12345678, "n": [1.5, None, True, "x12345678y"], "t": 'say a"b\\cdefgh'}
    clean = values_without_keys(record)
    assert clean == {"12345678": 12345678, "n": [1.5, None, True, "x***y"], "t": "say ***"}
    assert json.loads(json.dumps(clean)) == clean


def test_a_key_in_the_items_of_an_older_run_is_not_copied(fake, mini, tmp_path, monkeypatch):
    url, server = fake
    knows(server)
    mini(url, out="old")
    old = lines(tmp_path / "old")
    old[0]["output"] += " sk-very-secret"
    (tmp_path / "old" / "eval.jsonl").write_text("".join(json.dumps(one) + "\n" for one in old))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    mini(url, "--baseline", tmp_path / "old")
    reference = next(one for one in lines(tmp_path / "out") if one["side"] == "reference")
    assert reference["output"] == old[0]["output"].replace("sk-very-secret", "***")
