"""Ask one server the same multiple-choice items many times, drawing the answers, and keep who was right when.

    python -m benchmarks.record_passes http://127.0.0.1:8000 -o FILE [--passes 40] [--items 200] [--name NAME]

Passes of one model differ by chance alone, so comparisons between them show how often `halfbyte eval` cries wolf. The
questions, the prompts and the scores are those of lm-eval and of the suite `mini-generative`; only the temperature is 1
instead of 0, and every pass sends another seed. One line of settings, then one line a pass.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfbyte.validate.endpoint import parse_url
from halfbyte.validate.evaluate.harness import Arm, Pass, load_harness, run_pass
from halfbyte.validate.evaluate.preflight import preflight
from halfbyte.validate.evaluate.store import Store
from halfbyte.validate.evaluate.suites import load_suite

ROOT = Path(__file__).parents[1]
TASK = "kimi_mini_mmlu_generative"
TEMPERATURE = 1.0
CONCURRENCY = 8


def record(url: str, passes: int, items: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what was asked, and for each pass which items were right, as a text of 0 and 1."""
    whole = load_suite("mini-generative")
    (task,) = (one for one in whole.tasks if one.task == TASK)
    drawn = task.model_copy(update={"generation": {"do_sample": True, "temperature": TEMPERATURE}})
    rows: list[dict[str, Any]] = []
    clusters: list[str | None] = []
    harness = load_harness(whole.model_copy(update={"tasks": [drawn]}), ROOT)
    ready = preflight(parse_url(url, 120), None, harness.suite)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(passes):
            seeded = replace(harness, suite=harness.suite.model_copy(update={"request_seed": seed}))
            with Store(Path(folder) / f"{seed}.jsonl") as store:
                arm = Arm("candidate", ready, "recorded", CONCURRENCY, store, lambda *_: None)
                samples, _ = run_pass(seeded, arm, Pass(drawn, whole.passes[0], items))
            right = "".join("-" if one.scores is None else str(int(one.scores[task.primary])) for one in samples)
            clusters = [one.cluster for one in samples]
            rows.append({"seed": seed, "right": right})
            print(f"pass {seed}: {right.count('1')} of {len(right)}", flush=True)
    about = {"task": TASK, "temperature": TEMPERATURE, "items": items, "clusters": clusters}
    return {**about, "server": ready.identity.told.get("version"), "data": harness.data[TASK]}, rows


def main() -> None:
    """Record, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--name", default="", help="what is served")
    asked = parser.parse_args()
    about, rows = record(asked.url, asked.passes, asked.items)
    lines = [{"name": asked.name, **about}, *rows]
    asked.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
