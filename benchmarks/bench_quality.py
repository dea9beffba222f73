"""Quality of each 4-bit format on kimi-mini: KL, top-1 agreement, perplexity against the INT4 source; no server.

    python -m benchmarks.bench_quality WORK [--documents 160] [--score all]

Calibrates once, makes every checkpoint of the table under WORK (or finds it there), and runs source and checkpoints on
the same held-out chats: drawn from the generators of the training data with a seed of their own, seen by no training
and no calibration, scored where the assistant speaks (or everywhere, `--score all`: prompts were never learned, so the
KL is large, and of many tokens instead of a few). W4A16 is the weights alone; W4A4 quantizes activations too, as
engines do.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training import make_sets, mixture

from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.tokenizer import load_vocabulary
from halfbyte.compare.models import open_side
from halfbyte.compare.report import Report, kl_ratio
from halfbyte.compare.stream import compare_many
from halfbyte.compare.tokens import answers, rows_of
from halfbyte.engine.calibrate import calibrate
from halfbyte.engine.pipeline import quantize
from halfbyte.machine.resources import usable_cores
from halfbyte.recipe.load import load_recipe

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "models" / "kimi-mini"
DATA = ["news=" + str(ROOT / "data/calibration/articles.jsonl")]
DATA += ["{domain}=" + str(ROOT / "data/calibration/instructions.jsonl")]
SAMPLES, LENGTH = 256, 320
HELD_OUT_SEED = 77
LONGEST_CHAT = 1100  # characters: no chat is cut
WAFER, DECART, MXFP4 = "kimi-k2.6-nvfp4-wafer", "kimi-k2.7-code-nvfp4-decart", "kimi-k2.6-mxfp4-wafer"
BASELINE, GPTQ = "nvfp4 mse, experts", "nvfp4 gptq, experts"
# Checkpoints: the recipe and its overrides.
CHECKPOINTS = {
    "bf16": ("kimi-k2.6-bf16", []),
    "nvfp4 max, experts": (DECART, ["quantize.scales=max"]),
    BASELINE: (DECART, []),
    GPTQ: ("kimi-k2.6-nvfp4-gptq", []),
    "mxfp4, experts": (MXFP4, []),
    "nvfp4 max, wafer": (WAFER, ["quantize.kv_scale_min=null"]),
    "nvfp4 mse, wafer": (WAFER, ["quantize.kv_scale_min=null", "quantize.scales=mse"]),
}
# Runs: W4A16, W4A4, and the FP8 KV cache on top of the first, each with how the checkpoint is opened.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"{name}, W4A16": (name, {}) for name in CHECKPOINTS},
    **{f"{name}, W4A4": (name, {"activations": "as-served"}) for name in CHECKPOINTS if name != "bf16"},
    "nvfp4 max, wafer, W4A16, FP8 KV cast": ("nvfp4 max, wafer", {"kv": "fp8"}),
    "nvfp4 max, wafer, W4A16, FP8 KV by k_scale": ("nvfp4 max, wafer", {"kv": "fp8-scaled"}),
}


KV = ["nvfp4 max, wafer, W4A16", *(name for name in RUNS if "FP8 KV" in name)]  # none, cast, by k_scale


def held_out(path: Path, count: int) -> Path:
    """Write held-out chats."""
    rng, modules = random.Random(HELD_OUT_SEED), mixture.modules()
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        row = make_sets.instruction(modules[list(modules)[len(rows) % len(modules)]].train_sample(rng))
        if row["messages"] and len(json.dumps(row["messages"])) <= LONGEST_CHAT:
            rows.append(row)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def make(work: Path, samples: int) -> dict[str, Path]:
    """Make every checkpoint; those that are there stay."""
    stats = work / "stats"
    calibrate(SOURCE, stats, with_data(load_recipe(WAFER), DATA, samples))
    made: dict[str, Path] = {}
    for name, (recipe, overrides) in CHECKPOINTS.items():
        made[name] = work / name.replace(", ", "-").replace(" ", "-")
        loaded = load_recipe(recipe, overrides)
        if name == GPTQ:  # which measures while it writes
            quantize(SOURCE, made[name], with_data(loaded, DATA, samples))
        else:
            quantize(SOURCE, made[name], loaded, stats=stats if loaded.calibrate else None)
    return made


def row(name: str, report: Report, baselines: dict[str, Report]) -> str:
    """Return a line of the table."""
    total = report.total
    baseline = baselines["W4A4" if "W4A4" in name else "W4A16"]
    cells = [f"{total.kl.value:.5f} ({total.kl.low:.5f} to {total.kl.high:.5f})" if total.kl.low is not None else "0"]
    cells += [f"{100 * total.top1.value:.2f}", f"{total.perplexity_ratio.value:.4f}"]
    if report is baseline or not total.kl.value:
        return f"| {name} | {' | '.join(cells)} | |"
    found = kl_ratio(report, baseline)
    return f"| {name} | {' | '.join(cells)} | {found.value:.2f} ({found.low:.2f} to {found.high:.2f}) |"


def kv_lines(reports: dict[str, Report]) -> list[str]:
    """Say what an FP8 KV cache costs, and whether the two ways differ; nothing where they were not run."""
    if not all(name in reports for name in KV):
        return []
    none, cast, scaled = (reports[name] for name in KV)
    pairs = {"cast / none": (cast, none), "k_scale / none": (scaled, none), "k_scale / cast": (scaled, cast)}
    found = {words: kl_ratio(*pair) for words, pair in pairs.items()}
    return [
        "",
        *(f"FP8 KV, {words}: {one.value:.2f} ({one.low:.2f} to {one.high:.2f})" for words, one in found.items()),
    ]


def main() -> None:
    """Make, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents", type=int, default=160)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--score", choices=["answers", "all"], default="answers")
    parser.add_argument("--only", default="", help="run only names that contain this, and the baseline")
    parser.add_argument("--out", type=Path, help="a folder for quality_kimi-mini_YYYYMM.{json,md}")
    given = parser.parse_args()
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)  # before any work
    given.work.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    made = make(given.work, given.samples)
    chats = held_out(given.work / "held-out.jsonl", given.documents)
    rows = rows_of([f"{{source}}={chats}"], SOURCE, samples=given.documents, length=LENGTH, kind="padded")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(open_side(SOURCE))
        runs = {name: run for name, run in RUNS.items() if given.only in name or BASELINE in name}
        sides = [stack.enter_context(open_side(made[name], **how)) for name, how in runs.values()]
        scored = answers(rows, load_vocabulary(SOURCE)) if given.score == "answers" else None
        found = compare_many(rows, first, sides, scored=scored, threads=given.threads)
    reports = dict(zip(runs, found, strict=True))
    baselines = {how: reports[f"{BASELINE}, {how}"] for how in ("W4A16", "W4A4")}
    head = ["| checkpoint | KL, nats (95 %) | top-1, % | perplexity ratio | KL over ModelOpt's MSE |"]
    lines = [
        *head,
        "| --- | --- | --- | --- | --- |",
        *(row(name, report, baselines) for name, report in reports.items()),
    ]
    lines += kv_lines(reports)
    total = next(iter(reports.values())).total
    about = f"{total.documents} held-out chats, {total.tokens:,} predicted tokens, float32"
    about += "" if given.score == "answers" else ", prompts included"
    text = "\n".join([*lines, "", f"kimi-mini, {about}; calibrated on {given.samples} samples.", ""])
    print(text, f"{time.monotonic() - begin:.0f} s")
    if given.out:
        facts = {name: asdict(report.total) for name, report in reports.items()}
        machine = {"machine": platform.processor() or platform.machine(), "seconds": time.monotonic() - begin}
        part = "" if given.score == "answers" else "_all-tokens"
        stem = given.out / f"quality_kimi-mini{part}_{time.strftime('%Y%m')}"
        command = " ".join(["python -m benchmarks.bench_quality", *sys.argv[1:]])
        whole = {"command": command, "date": time.strftime("%Y-%m-%d"), **machine, "about": about, "runs": facts}
        stem.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        stem.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
