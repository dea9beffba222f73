"""Real runs of `quantize --ray` under injected bandwidth limits, beside the model of sim_ray.py.

    python benchmarks/bench_ray.py DIR

A small checkpoint of 16 shards is converted by 1, 4 and 8 workers. Every worker is a real Ray task that makes real
shards, and stands for a node: `throttled/` makes its reads and writes wait for a network of its own and for a storage
that all share. The limits are far below the machine's speed, so that waiting decides, not its two cores. Workers
have been warmed up by a run before. Layers are many equal matrices, as Kimi's are: a few large tensors would be read
and written one after the other. All outputs must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

from sim_ray import Machine, envelope, shares, simulate

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
MB = 1e6
RECIPE = "kimi-k2.6-mxfp4-wafer"
THREADS = 8  # of a worker: some read while others write


def limit(folder: Path, network: float, storage: float) -> None:
    (folder / "clock").write_bytes(struct.pack("d", 0.0))
    (folder / "limits.json").write_text(json.dumps({"network": network, "storage": storage}))


def digest(out: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(out.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--network", type=float, default=0.15, help="MB/s of a worker, each way")
    parser.add_argument("--storage", type=float, nargs="*", default=[0.6, 1000.0], help="MB/s of all")
    given = parser.parse_args()
    from pico import write_pico

    from halfbyte.engine.pipeline import plan, quantize
    from halfbyte.recipe.load import load_recipe

    recipe = load_recipe(RECIPE)
    source = write_pico(given.folder / "source", layers=13, experts=64, hidden=64, expert_width=32)
    work = shares(plan(source, recipe))
    limits = Path(tempfile.mkdtemp(prefix="hb", dir="/tmp"))
    os.environ |= {
        "HALFBYTE_BENCH_LIMITS": str(limits),
        "PYTHONPATH": os.pathsep.join([str(HERE / "throttled"), str(HERE.parent / "src")]),
        "RAY_TMPDIR": str(limits),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    import ray

    print(
        f"{len(work)} shards, {sum(r for r, _ in work) / MB:.1f} MB read, {sum(w for _, w in work) / MB:.1f} MB written"
    )
    digests = set()
    for workers in given.workers:
        ray.init(num_cpus=workers * THREADS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        limit(limits, 1e12, 1e12)
        quantize(source, given.folder / f"warm-{workers}", recipe, ray="local", threads=THREADS)
        for storage in given.storage:
            limit(limits, given.network * MB, storage * MB)
            begin = time.monotonic()
            out = given.folder / f"out-{workers}-{storage}"
            quantize(source, out, recipe, ray="local", threads=THREADS)
            seconds = time.monotonic() - begin
            digests.add(digest(out))
            machine = Machine(workers, THREADS, 1e12, given.network * MB, storage * MB, start=0.0)
            print(f"storage {storage:6.2f} MB/s, {workers:2d} workers: measured {seconds:5.1f} s,", end=" ")
            print(f"simulated {simulate(work, machine):5.1f} s, envelope {envelope(work, machine):5.1f} s", flush=True)
        ray.shutdown()
    print("all outputs are equal" if len(digests) == 1 else "OUTPUTS DIFFER")
    shutil.rmtree(limits, ignore_errors=True)


if __name__ == "__main__":
    main()
