"""`halfbyte eval` against a real vLLM with kimi-mini: its scores equal the repository's own, and a kill loses nothing.

The suite is `mini`: five-shot word problems, choices by likelihood (echoed log-probabilities), copying through the chat
template.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from training.domains import copying, word_problems
from training.sample import Item

pytestmark = [pytest.mark.live, pytest.mark.slow]  # three minutes: `make slow`
pytest.importorskip("lm_eval")

ROOT = Path(__file__).parents[2]
LIMIT = 12
REQUESTS = 6 * LIMIT  # one for a word problem and for a text to copy, four for a choice


TASKS = ("kimi_mini_gsm8k", "kimi_mini_mmlu", "kimi_mini_copying")
LOOK = 8  # requests that tell a server from another: four prompts, completed and as a chat


@pytest.fixture(scope="module")
def server(kimi_mini_server):
    return kimi_mini_server


def evaluate(server, out, *options):
    """Start `halfbyte eval` in a separate process."""
    command = [sys.executable, "-m", "halfbyte", "eval", server.url, "--suite", "mini", "--data-dir", str(ROOT)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [*command, "--limit", str(LIMIT), "-o", str(out), *options],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(process):
    printed, said = process.communicate(timeout=600)
    assert process.returncode == 0, printed + said
    return printed


def answered(server) -> int:
    """Return how many requests vLLM has finished since it started, by its own count."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        found = re.findall(r"^vllm:request_success_total\{[^}]*\} (\S+)", answer.read().decode(), re.MULTILINE)
    return int(sum(map(float, found)))


def rows(out, task):
    lines = map(json.loads, (out / "eval.jsonl").read_text().splitlines())
    return [one for one in lines if one["task"] == task]


def items(name):
    return [json.loads(line) for line in (ROOT / "evals" / name / "test.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    out = tmp_path_factory.mktemp("eval")
    finished(evaluate(server, out))
    return out


def test_word_problems_score_as_our_own_scoring_does(whole):
    found = rows(whole, "kimi_mini_gsm8k")
    for row, item in zip(found, items("word_problems"), strict=False):
        right = item["answer"].rpartition("#### ")[2]
        ours = word_problems.score(Item("word_problems", item["id"], answer=right), row["output"])
        assert bool(row["scores"]["exact_match,strict-match"]) == ours
    assert len(found) == LIMIT and sum(row["scores"]["exact_match,strict-match"] for row in found) >= LIMIT / 2
    assert {row["finish_reason"] for row in found} == {"stop"}


def test_copies_score_as_our_own_scoring_does(whole):
    asked = [one for one in items("copying") if not one["thinking"]]
    found = rows(whole, "kimi_mini_copying")
    same = [row for row, item in zip(found, asked, strict=False) if item["fields"]["form"] != "reverse"]
    for row, item in zip(found, asked, strict=False):
        if item["fields"]["form"] != "reverse":  # our scoring reads only its last word
            ours = copying.score(Item(**item), row["output"].strip())
            assert bool(row["scores"]["exact_match,stripped"]) == ours
    assert len(same) >= LIMIT / 2


def test_choices_are_the_most_likely_letters_that_vllm_gives(server, whole):
    """The first choices again with our own requests: the most likely next token among the letters."""
    for row, item in list(zip(rows(whole, "kimi_mini_mmlu"), items("world"), strict=False))[:4]:
        subject = item["subject"].replace("_", " ")
        options = "\n".join(f"{letter}. {text}" for letter, text in zip("ABCD", item["choices"], strict=True))
        prompt = (
            f"The following are multiple choice questions (with answers) about {subject}.\n\n"
            f"{item['question'].strip()}\n{options}\nAnswer:"
        )
        said = server.ask("/v1/completions", model="kimi-mini", prompt=prompt, max_tokens=1, temperature=0, logprobs=20)
        likely = said["choices"][0]["logprobs"]["top_logprobs"][0]
        for letter, (value, _) in zip("ABCD", row["output"], strict=True):
            if f" {letter}" in likely:
                assert value == pytest.approx(likely[f" {letter}"], abs=1e-3)
        best = max(range(4), key=lambda place: row["output"][place][0])
        assert likely[f" {'ABCD'[best]}"] == pytest.approx(max(row["output"])[0], abs=1e-3)
        assert row["scores"]["acc,none"] == (best == item["answer"])


def test_a_kill_repeats_nothing(server, whole, tmp_path):
    process = evaluate(server, tmp_path)
    store, end = tmp_path / "requests.jsonl", time.monotonic() + 300
    while (len(store.read_bytes().splitlines()) if store.exists() else 0) < 8 and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(5)  # vLLM notices the disconnected client
    kept = sum(
        b'"kind": "request"' in line for line in store.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"
    )
    assert 0 < kept < REQUESTS
    counts, sent = [answered(server)], []
    for _ in range(2):  # the second of them asks nothing but the pre-flight
        finished(evaluate(server, tmp_path))
        counts.append(answered(server))
        sent.append(json.loads((tmp_path / "eval.json").read_text())["requests_sent"])
    assert sent == [REQUESTS - kept, 0]
    rest, before_any = counts[1] - counts[0], counts[2] - counts[1]
    # Beside them, after each task, whether it is still the same server; by the engine's own count nothing else.
    assert rest - before_any == REQUESTS - kept + len(TASKS) * LOOK
    for task in TASKS:
        assert [row["scores"] for row in rows(tmp_path, task)] == [row["scores"] for row in rows(whole, task)]


def test_a_model_against_itself_is_no_regression(server, whole, tmp_path):
    printed = finished(evaluate(server, tmp_path, "--baseline", str(whole)))
    assert "REGRESSION" not in printed and "INCONCLUSIVE" in printed
    found = json.loads((tmp_path / "eval.json").read_text())
    assert all(one["comparisons"][one["primary"]]["difference"] == 0 for one in found["tasks"])
