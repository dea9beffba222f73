"""Comparing and calibrating on a GPU against the CPU: kimi-mini's INT4 and an NVFP4 checkpoint that is made of it.

    python benchmarks/check_device_compare.py                     on the machine with the GPU; no pydantic, no PyYAML
    python benchmarks/check_device_compare.py --source SRC --other OUT --no-cpu       two checkpoints that are there

Makes the checkpoint on the GPU, measures the same statistics alone, which must be equal to the byte, and compares: the
weights alone, and with activations and KV cache as they are served. On the GPU twice, which must give the same numbers,
and on the CPU, which adds in another order: its KL must be the same to a hundredth.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "models" / "kimi-mini"
ARTICLES = ROOT / "data" / "calibration" / "articles.jsonl"
KEPT = ("shared_experts", "dense_mlp", "attention", "router", "embed", "head", "vision", "projector", "norm")
CASES: dict[str, dict[str, str]] = {
    "weights": {},
    "as served": {"activations": "as-served", "kv": "fp8"},
}
TOLERANCE = 1e-2


def texts(samples: int, length: int, kind: str) -> Any:
    """Return which tokens are run on."""
    from halfbyte.recipe.decisions import Calibrate, Dataset

    columns = ("article",)
    news = Dataset(domain="news", source=str(ARTICLES), columns=columns, chat_template=False, share=samples)
    return Calibrate.of(
        {
            "samples": samples,
            "sequence_length": length,
            "rows": kind,
            "seed": None,
            "propagate": "unquantized",
            "datasets": [{name: getattr(news, name) for name in Dataset.__slots__}],
        }
    )


def recipe() -> Any:
    """Return NVFP4 experts with calibrated input scales, as the recipe kimi-k2.6-nvfp4-nvidia has them."""
    from halfbyte.recipe.decisions import EngineConfig, InputScale, Quantize, Recipe

    quantize = Quantize(
        format="nvfp4",
        scales="max",
        activations="calibrated",
        input_scale=InputScale(per="layer"),
        kv_cache="fp8_cast",
        config=EngineConfig(
            producer_version="0.41.0",
            ignore_roles=("head", "dense_mlp", "shared_experts", "attention", "projector", "vision"),
        ),
    )
    return Recipe(
        name="nvfp4",
        description="",
        roles={"routed_experts": "quantize", **dict.fromkeys(KEPT, "keep"), "other_buffers": "keep"},
        quantize=quantize,
        calibrate=texts(64, 256, "padded"),
        shards="5GB",
    )


def make(source: Path, work: Path, device: str) -> tuple[Path, bool]:
    """Make the checkpoint; return it, and whether its statistics are those that are measured alone."""
    from halfbyte.engine.calibrate import calibrate
    from halfbyte.engine.pipeline import quantize

    begin = time.perf_counter()
    quantize(source, work / "out", recipe(), device=device, verify_source=False)
    middle = time.perf_counter()
    calibrate(source, work / "stats", recipe(), device=device)
    end = time.perf_counter()
    files = (work / "out/halfbyte/stats/stats.safetensors", work / "stats/stats.safetensors")
    equal = files[0].read_bytes() == files[1].read_bytes()
    print(f"quantize {middle - begin:.1f} s, calibrate alone {end - middle:.1f} s, "
          f"statistics {'equal' if equal else 'DIFFERENT'}", flush=True)  # fmt: skip
    return work / "out", equal


def compared(source: Path, other: Path, rows: Any, device: str, how: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Return the result of a comparison, and a line about its time and memory."""
    import torch

    from halfbyte.compare.models import open_side
    from halfbyte.compare.stream import ROWS, compare, needs
    from halfbyte.machine.resources import usable_cores

    gpu = device == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    steps: list[float] = []
    with open_side(source, device=device) as first, open_side(other, device=device, **how) as second:
        found = compare(rows, first, second, threads=usable_cores(), progress=lambda step: steps.append(step.seconds))
        need = needs(rows.tokens.shape, ROWS, [first, second]).total(len(rows.tokens))
    layers = [after - before for before, after in itertools.pairwise(steps)]
    line = f"{found.seconds:8.2f} s, {min(layers, default=0):.3f} to {max(layers, default=0):.3f} s a layer"
    if gpu:
        taken, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        line += f"; device {taken / 1e9:.2f} GB at most, {reserved / 1e9:.2f} GB reserved, {need / 1e9:.2f} GB counted"
    value = found.whole_record("all").as_json()
    del value["seconds"], value["device"]
    return value, line


def check(source: Path, other: Path, rows: Any, devices: list[str]) -> bool:
    """Compare everywhere; return whether all numbers are as expected."""
    good = True
    for name, how in CASES.items():
        found = {}
        for at, device in enumerate(devices):
            value, line = compared(source, other, rows, device, how)
            total = value["total"]
            print(f"{name:<10} {device:<6} KL {total['kl']['value']:.8f}  top-1 {total['top1']['value']:.6f}  {line}",
                  flush=True)  # fmt: skip
            found[at] = value
        twice = found[0] == found[1]
        print(f"{name:<10} twice on the device: {'the same to the bit' if twice else 'DIFFERENT'}")
        good &= twice
        if len(found) > 2:
            kl, cpu = (found[at]["total"]["kl"]["value"] for at in (1, 2))
            apart = abs(kl - cpu) / cpu
            errors = [
                abs(a["relative_error"] - b["relative_error"]) / b["relative_error"] if b["relative_error"] else 0.0
                for a, b in zip(found[1]["layers"], found[2]["layers"], strict=True)
            ]
            print(f"{name:<10} KL differs by {apart:.1e} of it, errors of layers by at most {max(errors):.1e}")
            good &= apart <= TOLERANCE
    return good


def main() -> None:
    """Make, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--other", type=Path, help="a checkpoint of the source; without it, one is made")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--no-cpu", action="store_true", help="on the device only")
    parser.add_argument("--device", default="cuda", help="cpu:0 is Triton's interpreter, slowly")
    given = parser.parse_args()
    if given.device != "cuda":
        os.environ["TRITON_INTERPRET"] = "1"
    for name in [name for name in CASES if given.only and name != given.only]:
        del CASES[name]
    from halfbyte.calibrate.token_rows import make_rows
    from halfbyte.calibrate.tokenizer import load_vocabulary

    rows = make_rows(texts(given.samples, given.length, "packed"), load_vocabulary(given.source), None)
    work = Path(tempfile.mkdtemp(prefix="device-compare-"))
    try:
        other, good = (given.other, True) if given.other else make(given.source, work, given.device)
        devices = [given.device, given.device, *([] if given.no_cpu else ["cpu"])]
        good &= check(given.source, other, rows, devices)
    finally:
        shutil.rmtree(work)
    print("all as it should be" if good else "SOMETHING DIFFERS")
    sys.exit(not good)


if __name__ == "__main__":
    main()
