"""The main job on a model that thinks: `make demo` quantizes kimi-mini, checks the result, and asks both the same.

    python examples/demo.py [RECIPE]        any recipe that runs without calibration: kimi-k2.6-nvfp4a16, ...

kimi-mini (models/kimi-mini) has Kimi-K2.6's architecture and files, and 20 million parameters. The questions are
held-out items of its test sets; both models answer greedily, in FP32, on this CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halfbyte import Encoded, decode, encode, load_recipe
from halfbyte.cli import run
from halfbyte.console import Column, Output

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # training/ is no part of the package
from training import compare, make_sets, mixture, score, variants  # noqa: E402
from training.domains import programs, tools, word_problems  # noqa: E402
from training.sample import Item  # noqa: E402

RECIPE = "kimi-k2.6-mxfp4-wafer"  # one that needs no data; `halfbyte quantize --data` shows the others
SOURCE = ROOT / "models" / "kimi-mini"

# How many items of each domain are asked: a letter is written faster than a chain of thought.
ASKED = {"word_problems": 4, "world": 16, "structured": 4, "tools": 4, "copying": 4, "programs": 4}
SHOWN = {word_problems.DOMAIN: "4 digits", tools.DOMAIN: "one call", programs.DOMAIN: "numbers"}  # one of each, in full
NEW_TOKENS = 128

SHAPE = (2048, 7168)  # gate_proj of one routed expert of Kimi-K2.6
EXPERT_WEIGHTS = 60 * 384 * 3 * SHAPE[0] * SHAPE[1]  # all routed experts: 60 layers, 384 experts, 3 matrices
BEST_OF = 3


def command(*words: str) -> None:
    """Run a command as a user would, after showing it."""
    Output().note(f"\n$ halfbyte {' '.join(words)}")
    if run(words):
        sys.exit(f"halfbyte {words[0]} failed")


def whole_job(target: Path, recipe: str) -> None:
    """Look at the checkpoint, plan, convert, check."""
    source = SOURCE.relative_to(Path.cwd()) if SOURCE.is_relative_to(Path.cwd()) else SOURCE
    command("inspect", str(source), "-q")
    command("plan", str(source), "-r", recipe, "--no-measure", "-q")
    command("quantize", str(source), str(target), "-r", recipe, "-q")
    command("audit", str(target), "--against", str(source), "-q")


def questions() -> list[Item]:
    """Some held-out items of every domain, from all over its test set; first of all those that are shown in full."""
    found: list[Item] = []
    for domain, count in ASKED.items():
        items = make_sets.test_set(domain)
        shown = next((item for item in items if item.fields.get("form") == SHOWN.get(domain)), items[0])
        others = [item for item in items if item.id != shown.id]
        found += [shown, *others[len(others) // count :: len(others) // count]][:count]
    return found


def still_answers(target: Path, recipe: str) -> None:
    """Ask the source and what was made of it the same, and show both answers."""
    out, items, names = Output(), questions(), {"INT4 source": SOURCE, load_recipe(recipe).quantize.format: target}
    out.note(f"\n{len(items)} questions that kimi-mini has never seen, asked before and after ...\n")
    texts: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    torch.set_num_threads(1)  # matrices so small that threads would wait for each other most of the time
    for name, folder in names.items():
        model = compare.model_of(variants.as_released(folder), "cpu")
        start = time.perf_counter()
        texts[name] = score.answers(model, items, NEW_TOKENS)
        seconds[name] = time.perf_counter() - start
    for domain in SHOWN:
        position = next(at for at, item in enumerate(items) if item.domain == domain)
        item = items[position]
        show({"asked": asked(item)} | {name: said(item, texts[name][position]) for name in names})
    first, second = names
    out.table(
        [marks(domain, items, texts, names) for domain in ASKED],
        [
            Column("domain", "domain"),
            Column("asked", "asked", number=True),
            *(Column(name, f"right: {name}", number=True) for name in names),
            Column("same", "same words", number=True),
        ],
    )
    out.text(f"\n{len(items)} answers took {seconds[first]:.1f} s and {seconds[second]:.1f} s: one core, FP32", None)


def show(lines: dict[str, str]) -> None:
    """Labelled texts of several lines; on a terminal they are set by rich, elsewhere the further lines are indented."""
    indent = "" if sys.stdout.isatty() else " " * (max(map(len, lines)) + 3)
    Output().facts({}, [(label, text.replace("\n", f"\n{indent}")) for label, text in lines.items()])
    Output().text("\n", None)


def marks(domain: str, items: list[Item], texts: dict[str, list[str]], names: dict[str, Path]) -> dict[str, Any]:
    """One line of the table: how many are right, and how many are equal word for word."""
    module = mixture.modules()[domain]
    mine = [position for position, item in enumerate(items) if item.domain == domain]
    right = {name: sum(score.is_right(module, items[at], texts[name][at]) for at in mine) for name in names}
    first, second = (texts[name] for name in names)
    return {"domain": domain, "asked": len(mine), **right, "same": sum(first[at] == second[at] for at in mine)}


def asked(item: Item) -> str:
    """What a reader needs to see of a question."""
    text = item.prompt.removesuffix("\nAnswer:") or str(item.messages[-1]["content"])
    return text.removeprefix("Question: ")


def said(item: Item, output: str) -> str:
    """An answer as a reader likes it: calls as calls, without special tokens; and whether it is right."""
    mark = "✓" if score.is_right(mixture.modules()[item.domain], item, output) else "✗"
    calls = [f"{name}({given})" for name, given in tools.parse_calls(output)]
    return f"{' '.join(calls) or output.removesuffix('<|im_end|>').strip()}  {mark}"


def synthetic_expert() -> np.ndarray:
    """Weights with the spread of a trained layer: Gaussian, with rows and columns of different size."""
    rng = np.random.default_rng(2026)
    rows, columns = (rng.lognormal(0, 0.3, size).astype(np.float32) for size in SHAPE)
    return rng.standard_normal(SHAPE, np.float32) * np.float32(0.02) * rows[:, None] * columns


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function a few times; return its result and its best time in seconds."""
    best = float("inf")
    for _ in range(BEST_OF):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return result, best


def conversions(int4: Encoded) -> dict[str, Callable[[], Any]]:
    """What is shown: from Kimi's INT4 to each 4-bit target, and back to BF16."""
    return {
        "INT4 -> BF16": lambda: decode(int4),
        "INT4 -> NVFP4, max": lambda: encode(int4, "nvfp4", method="max"),
        "INT4 -> NVFP4, exact MSE sweep": lambda: encode(int4, "nvfp4", method="mse"),
        "INT4 -> MXFP4": lambda: encode(int4, "mxfp4", method="even"),
    }


def row(name: str, result: Any, seconds: float) -> dict[str, Any]:
    weights = SHAPE[0] * SHAPE[1]
    bf16_gb_per_s = 2 * weights / seconds / 1e9
    encoded = isinstance(result, Encoded)
    return {
        "conversion": name,
        "bits": 8 * result.nbytes / weights,
        "sqnr": f"{result.quality.sqnr_db:.2f} dB" if encoded and result.quality else "exact",
        "speed": f"{bf16_gb_per_s:.2f} GB/s",
        "all": f"{2 * EXPERT_WEIGHTS / 1e9 / bf16_gb_per_s / 60:.0f} min",
    }


def speeds() -> None:
    """What the conversions of one expert of the large model cost here."""
    out = Output()
    total = f"{EXPERT_WEIGHTS / 1e9:,.1f} G weights"
    out.note(f"\nand the large one: a made-up expert matrix of Kimi-K2.6, {list(SHAPE)}, on this machine;")
    out.note(f"the last column is all routed experts, {total}, at this speed and without the disk\n")
    int4 = encode(synthetic_expert(), "int4", method="kimi")
    rows = [row(name, *timed(work)) for name, work in conversions(int4).items()]
    columns = [
        Column("conversion", "conversion"),
        Column("bits", "bits/weight", number=True),
        Column("sqnr", "SQNR against INT4", number=True),
        Column("speed", "BF16 side", number=True),
        Column("all", "all routed experts", number=True),
    ]
    out.table(rows, columns)


def main(recipe: str = RECIPE) -> None:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="halfbyte-demo-") as folder:
        target = Path(folder) / "kimi-mini-quantized"
        whole_job(target, recipe)
        still_answers(target, recipe)
    speeds()
    Output().note(f"\ndone in {time.perf_counter() - start:.0f} s")
    Output().hint("halfbyte inspect --example kimi-k2.6")


if __name__ == "__main__":
    main(*sys.argv[1:2])
