"""kimi-mini's own sets, and a server that has their answers, for the tests of `halfbyte eval`."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[3]
WORDS = [json.loads(line) for line in (ROOT / "evals" / "word_problems" / "test.jsonl").read_text().splitlines()]
WORLD = [json.loads(line) for line in (ROOT / "evals" / "world" / "test.jsonl").read_text().splitlines()]
COPYING = [json.loads(line) for line in (ROOT / "evals" / "copying" / "test.jsonl").read_text().splitlines()]
LIMIT = 24


def knows(server, wrong=()):
    """Make a server answer the word problems (those in `wrong` wrongly) and choose the right letters."""
    for number, row in enumerate(WORDS[:LIMIT]):
        # Only the last question of a prompt is asked; the ones before it are shown with their answers.
        ending = f"Question: {row['question']}\nAnswer:"
        server.answers[ending] = " #### 0" if number in wrong else f" {row['answer']}"
    for row in WORLD[:LIMIT]:
        server.right_letters[row["question"]] = letter = "ABCD"[row["answer"]]
        server.answers[row["question"]] = f" {letter}"
    for row in COPYING:
        server.answers[row["messages"][0]["content"]] = row["answer"]


def saved(folder):
    return json.loads((folder / "eval.json").read_text())


def lines(folder):
    return [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
