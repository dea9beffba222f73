"""Finished requests stay finished: through kills, partial lines and other endpoints."""

import json
from dataclasses import replace

import pytest

from halfbyte.errors import MachineError
from halfbyte.evaluate.samples import Scope, Store, request_key

SCOPE = Scope("http://h:1", "m", "f00d", "mini", "kimi_mini_gsm8k", 1234)
ITEM = ("kimi_mini_gsm8k", 3, 0)


def record(key, **more):
    return {"kind": "request", "key": key, "answer": "42", "error": None} | more


@pytest.mark.parametrize(
    "other",
    [
        replace(SCOPE, url="http://h:2"),
        replace(SCOPE, model="n"),
        replace(SCOPE, fingerprint="beef"),
        replace(SCOPE, suite="chat"),
        replace(SCOPE, task="kimi_mini_mmlu"),
        replace(SCOPE, seed=42),
    ],
)
def test_another_endpoint_suite_task_or_seed_is_another_request(other):
    """lm-eval's cache uses only the prompt as key: the second server gets the score of the first."""
    assert request_key(other, ITEM, {"prompt": "x"}) != request_key(SCOPE, ITEM, {"prompt": "x"})


def test_another_payload_or_item_is_another_request():
    keys = {
        request_key(SCOPE, item, {"prompt": "x", "max_tokens": tokens})
        for item in (ITEM, ("kimi_mini_gsm8k", 4, 0), ("kimi_mini_gsm8k", 3, 1))
        for tokens in (1, 2)
    }
    assert len(keys) == 6


def test_added_records_are_there_after_reopening(tmp_path):
    with Store(tmp_path / "r.jsonl") as store:
        store.add(record("a"))
    with Store(tmp_path / "r.jsonl") as store:
        assert store.get("a") == record("a")
        assert store.get("b") is None


def test_a_failed_request_is_recorded_and_sent_again(tmp_path):
    with Store(tmp_path / "r.jsonl") as store:
        store.add(record("a", error="HTTP 500"))
        assert store.get("a") is None
    assert "HTTP 500" in (tmp_path / "r.jsonl").read_text()
    with Store(tmp_path / "r.jsonl") as store:
        assert store.get("a") is None


def test_half_a_line_of_a_killed_run_is_dropped_and_the_next_is_whole(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(json.dumps(record("a")).encode() + b'\n{"kind": "requ')
    with Store(path) as store:
        assert store.get("a") is not None
        store.add(record("b"))
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()] == ["a", "b"]


def test_a_damaged_line_is_counted_and_costs_only_itself(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\xff not json\n" + json.dumps(record("a")).encode() + b"\n")
    with Store(path) as store:
        assert store.damaged == 1 and store.get("a") is not None


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    with Store(tmp_path / "r.jsonl"), pytest.raises(MachineError, match="another run"):
        Store(tmp_path / "r.jsonl")
    Store(tmp_path / "r.jsonl").close()
