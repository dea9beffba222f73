"""What halfbyte can do today, on this machine: `make demo`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from halfbyte import Encoded, decode, encode
from halfbyte.cli import run
from halfbyte.console import Column, Output

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from synth import tiny

RECIPE = "kimi-k2.6-mxfp4-wafer"

SHAPE = (2048, 7168)  # gate_proj of one routed expert of Kimi-K2.6
EXPERT_WEIGHTS = 60 * 384 * 3 * SHAPE[0] * SHAPE[1]  # all routed experts: 60 layers, 384 experts, 3 matrices
BEST_OF = 3


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


def command(*words: str) -> None:
    """Run a command as a user would, after showing it."""
    Output().note(f"\n$ halfbyte {' '.join(words)}")
    if run(words):
        sys.exit(f"halfbyte {words[0]} failed")


def whole_job() -> None:
    """A small checkpoint with Kimi-K2.6's names: look at it, plan, convert, check."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder) / "tiny-k2.6"), str(Path(folder) / "tiny-k2.6-mxfp4")
        tiny(Path(source))
        command("inspect", source)
        command("plan", source, "-r", RECIPE)
        command("quantize", source, target, "-r", RECIPE)
        command("audit", target, "--against", source)


def speeds() -> None:
    """What the conversions of one expert cost here."""
    out = Output()
    out.note(f"\none expert matrix of Kimi-K2.6, {list(SHAPE)}, made up; the kernels compile on first use ...")
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
    total = f"{EXPERT_WEIGHTS / 1e9:,.1f} G weights"
    out.note(f"\nthe last column: the {total} of all routed experts of K2.6 at this speed, without the disk")


def main() -> None:
    command("doctor", "--no-disk")
    whole_job()
    speeds()
    Output().hint("halfbyte inspect --example kimi-k2.6")


if __name__ == "__main__":
    main()
