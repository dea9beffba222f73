"""The pass on one GPU at Kimi-K2.6's size: seconds a MoE layer, where they go, and the same bytes copied by `cp`.

    python benchmarks/bench_h200.py --write-plans PLANS           where recipes can be read (pydantic, PyYAML)
    python benchmarks/bench_h200.py PLANS --out RESULTS           on the machine with the GPU, which needs neither

Makes a checkpoint of Kimi-K2.6's geometry (a dense layer and some MoE layers of 384 experts, invented INT4 weights on
Kimi's grid), with kimi-mini's vocabulary to make tokens of this repository's articles, and runs it through `quantize`
on the GPU: from and to /dev/shm, and from and to a disk, each time beside `cp` of the same bytes and a sync. Seconds of
a layer are those between the ends of two layers.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from h200_table import table  # pyright: ignore[reportImplicitRelativeImport]
from synth import KIMI_K26, write_headers, write_layers  # pyright: ignore[reportImplicitRelativeImport]

from halfbyte.checkpoint.atomic_write import ShardFile
from halfbyte.engine.pipeline import quantize
from halfbyte.ui.units import nbytes

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "kimi-mini"
VOCABULARY = 8192  # kimi-mini's tokens have numbers below this; a whole embedding would be 2.3 GB of nothing new
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tiktoken.model", "chat_template.jinja")
DISK = "disk"
RECIPES = {
    "max": ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max"]),
    "mse": ("kimi-k2.6-nvfp4-nvidia", []),
    DISK: ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max"]),
}
RUNS = "max,max again,mse,mse again,max 24GB"


def geometry(layers: int, experts: int) -> Any:
    """Kimi-K2.6's, with some of its layers."""
    return replace(KIMI_K26, layers=layers, experts=experts, vocabulary=VOCABULARY, vision_blocks=0)


def make_source(folder: Path, layers: int, experts: int, *, holes: bool = False) -> Path:
    """Write a checkpoint that can be calibrated."""
    (write_headers if holes else write_layers)(folder, geometry(layers, experts))
    for name in TOKENIZER:
        if (MODEL / name).exists():
            shutil.copy(MODEL / name, folder / name)
    return folder


def write_plans(plans: Path, layers: int, experts: int, samples: int) -> None:
    """Write the plan of each run; only headers decide it."""
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.engine.pipeline import plan
    from halfbyte.recipe.load import load_recipe

    plans.mkdir(parents=True, exist_ok=True)
    source = make_source(plans / "source", layers, experts, holes=True)
    for name, (recipe, overrides) in RECIPES.items():
        rows = samples * 7 // 8 if name == DISK else samples  # two copies of the hidden states must have room as well
        loaded = with_data(load_recipe(recipe, overrides), ["news=data/calibration/articles.jsonl"], rows)
        made = plan(source, loaded)
        (plans / f"{name}.json").write_text(json.dumps(made.as_dict()))
    shutil.rmtree(source)


class Memory:
    """Peak resident memory of this process, and of the device, while something runs."""

    def __init__(self) -> None:
        import torch

        self._torch, self._stop = torch, threading.Event()
        self.anonymous = self.shared = 0

    def __enter__(self) -> Memory:
        self._torch.cuda.reset_peak_memory_stats()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            sizes = {name: int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem", "RssFile")}
            self.anonymous = max(self.anonymous, sizes["RssAnon"] + sizes["RssFile"])
            self.shared = max(self.shared, sizes["RssShmem"])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def as_dict(self) -> dict[str, int]:
        """Return the peaks in bytes; shared pages are those of the output in /dev/shm."""
        cuda = self._torch.cuda
        free, total = cuda.mem_get_info()
        return {
            "host_nbytes": self.anonymous,
            "host_shared_nbytes": self.shared,
            "device_allocated_nbytes": cuda.max_memory_allocated(),
            "device_reserved_nbytes": cuda.max_memory_reserved(),
            "device_in_use_nbytes": total - free,
        }


class Writing:
    """Seconds that threads spend in writing, all of them together."""

    def __init__(self) -> None:
        self.seconds, self.nbytes, self._lock, self._write = 0.0, 0, threading.Lock(), ShardFile.write

    def __enter__(self) -> Writing:
        def write(file: ShardFile, data: memoryview, offset: int, *, lent: bool = False) -> None:
            begin = time.perf_counter()
            self._write(file, data, offset, lent=lent)
            with self._lock:
                self.seconds += time.perf_counter() - begin
                self.nbytes += len(data)

        ShardFile.write = write
        return self

    def __exit__(self, *_: object) -> None:
        ShardFile.write = self._write


def timed(source: Path, out: Path, plan_file: Path, device_memory: int | None) -> dict[str, Any]:
    """Run a plan on the GPU; return seconds of layers and of each kind of work, and memory."""
    from halfbyte.engine.backends.cuda import backend as start
    from halfbyte.plan.manifest import read_plan_file

    ends: list[tuple[str, float]] = []
    passes: list[Any] = []
    chosen: list[Any] = []
    run, mode_of = start.run_on_device, start.mode_of
    writing = Writing()

    def watched(*given: Any) -> Any:
        found, passing = run(*given)
        passes.append(passing)
        return found, passing

    def watched_mode(*given: Any) -> Any:
        chosen.append(mode_of(*given))
        return chosen[-1]

    start.run_on_device, start.mode_of = watched, watched_mode
    begin = time.perf_counter()
    try:
        with Memory() as memory, writing:
            quantize(
                source,
                out,
                read_plan_file(plan_file).recipe,
                device="cuda",
                device_memory=device_memory,
                verify_source=False,
                progress=lambda progress: ends.append((progress.shard, time.perf_counter() - begin)),
            )
    finally:
        start.run_on_device, start.mode_of = run, mode_of
    needs, mode = chosen[-1]
    seconds = time.perf_counter() - begin
    measured = [at for what, at in ends if what.startswith("measured layer")]
    return {
        "seconds": seconds,
        "layer_ends": [round(at, 3) for at in measured],
        "seconds_of_layers": [round(b - a, 3) for a, b in itertools.pairwise(measured)],
        "mode": mode.name,
        "planned_device_nbytes": needs.total(mode),
        "planned_device_parts": needs.parts(mode),
        "work": {**passes[0].clock.as_dict(), "write": {"seconds": writing.seconds, "nbytes": writing.nbytes}},
        "memory": memory.as_dict(),
        "events": [(what, round(at, 3)) for what, at in ends],
    }


def in_its_own_process(source: Path, out: Path, plan_file: Path, device_memory: int | None) -> dict[str, Any]:
    """Run a plan as a user does; kernels that were compiled once are found in Triton's cache."""
    command = [sys.executable, __file__, str(plan_file), "--one", str(source), str(out)]
    command += ["--device-memory", str(device_memory)] if device_memory else []
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(ended.stderr[-3000:])
    return json.loads(ended.stdout.splitlines()[-1])


def profile_kernels(source: Path, out: Path, plan_file: Path, device_memory: int | None) -> None:
    """Print where the device's time goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        timed(source, out, plan_file, device_memory)
    for one in sorted(found.key_averages(), key=lambda one: -one.device_time_total)[:40]:
        print(f"{one.device_time_total / 1e6:8.3f} s {one.count:8d} {one.key[:110]}", flush=True)


def copied(source: Path, target: Path) -> float:
    """Return the seconds of `cp` and a sync."""
    forget(source)
    begin = time.perf_counter()
    subprocess.run(f'cp -r "{source}" "{target}" && sync -f "{target}"', shell=True, check=True)
    return time.perf_counter() - begin


def forget(folder: Path) -> None:
    """Take a folder's files out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def size(folder: Path) -> int:
    """Return the bytes of a folder's shards."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def machine() -> dict[str, Any]:
    """Describe the subject of the numbers."""
    import torch
    import triton

    asked = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]
    smi = subprocess.run(command, check=False, capture_output=True, text=True)
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": smi.stdout.splitlines()[-1] if smi.stdout else "",
        "cores": os.cpu_count(),
        "memory_nbytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "kernel": platform.release(),
    }


def main() -> None:
    """Write plans, or run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path)
    parser.add_argument("--write-plans", action="store_true")
    parser.add_argument("--layers", type=int, default=5, help="decoder layers, the first one dense")
    parser.add_argument("--experts", type=int, default=KIMI_K26.experts)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk", type=Path, help="a folder on a disk; nothing is measured there without it")
    parser.add_argument(
        "--runs", default=RUNS, help="which: the first of a kind compiles; with a limit of device memory"
    )
    parser.add_argument("--profile", action="store_true", help="print the kernels that take longest")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--same-process", action="store_true", help="all runs in one: only the first one starts up")
    parser.add_argument("--no-copy", action="store_true", help="leave out `cp` from and to memory")
    parser.add_argument("--device-memory", type=nbytes, help="limit of GPU memory for the pass, e.g. 24GB")
    parser.add_argument("--one", nargs=2, type=Path, metavar=("SRC", "OUT"), help="run the one plan, print JSON")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)  # before any work
    if given.one:
        print(json.dumps(timed(*given.one, given.plans, given.device_memory)))
        return
    if given.write_plans:
        write_plans(given.plans, given.layers, given.experts, given.samples)
        return
    bench = Bench(given)
    bench.decode()
    bench.in_memory()
    if given.disk:
        bench.on_disk()
    print(json.dumps({k: v.get("seconds") for k, v in bench.found.items() if isinstance(v, dict)}))


class Bench:
    """Run one after the other, and save the results after each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._plans = given, given.plans
        self.found: dict[str, Any] = {"machine": machine(), "layers": given.layers, "experts": given.experts}
        self._work = given.memory / "bench_h200"
        shutil.rmtree(self._work, ignore_errors=True)

    def _run(self, source: Path, out: Path, named: str) -> dict[str, Any]:
        """Run by name: a plan, then optionally a limit of device memory, or a label without effect."""
        kind, _, rest = named.partition(" ")
        limit = nbytes(rest) if rest.endswith("GB") else self._given.device_memory
        run = timed if self._given.same_process and kind != DISK else in_its_own_process
        return run(source, out, self._plans / f"{kind}.json", limit)

    def _save(self, name: str, what: dict[str, Any]) -> None:
        self.found[name] = what
        self.found["peak_rss_nbytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        path = self._given.out / f"h200_{datetime.date.today():%Y%m}.json"
        path.write_text(json.dumps(self.found, indent=1) + "\n")
        path.with_suffix(".md").write_text(table(self.found))
        print(name, {key: value for key, value in what.items() if key != "events"}, flush=True)

    def decode(self) -> None:
        """A layer's experts to BF16, one after the other as the forward asks for them; elsewhere part of `experts`."""
        import torch

        from halfbyte.formats.gpu.decode import int4_to_bf16

        n, k = KIMI_K26.expert_width, KIMI_K26.width
        stacks = [
            (torch.zeros(1, rows, columns // 8, dtype=torch.int32, device="cuda"),
             torch.ones(1, rows, columns // 32, dtype=torch.bfloat16, device="cuda"))
            for rows, columns in ((n, k), (n, k), (k, n))
        ]  # fmt: skip
        seconds: list[float] = []
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(self._given.experts):
                for packed, scale in stacks:
                    int4_to_bf16(packed, scale)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        self._save("decode alone", {"seconds": seconds[-1]})

    def in_memory(self) -> None:
        """From and to /dev/shm."""
        begin = time.perf_counter()
        source = make_source(self._work / "source", self._given.layers, self._given.experts)
        self._save("source", {"nbytes": size(source), "seconds_to_make": round(time.perf_counter() - begin, 1)})
        for run in filter(None, self._given.runs.split(",")):
            self._save(f"memory, {run}", self._run(source, self._work / "out", run))
            shutil.rmtree(self._work / "out")
        if not self._given.no_copy:
            self._save("memory, cp", {"seconds": copied(source, self._work / "copy")})
            shutil.rmtree(self._work / "copy")
        if self._given.profile:
            profile_kernels(source, self._work / "out", self._plans / "max.json", self._given.device_memory)
            shutil.rmtree(self._work / "out")

    def on_disk(self) -> None:
        """From and to a disk."""
        disk = self._given.disk / "bench_h200"
        shutil.rmtree(disk, ignore_errors=True)
        disk.mkdir(parents=True)
        self._save("disk, cp from memory", {"seconds": copied(self._work / "source", disk / "source")})
        shutil.rmtree(self._work)
        self._save("disk, cp", {"seconds": copied(disk / "source", disk / "copy")})
        shutil.rmtree(disk / "copy")
        forget(disk / "source")
        self._save("disk, max", self._run(disk / "source", disk / "out", DISK))
        shutil.rmtree(disk)


if __name__ == "__main__":
    main()
