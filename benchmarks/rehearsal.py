"""Rehearse a whole Kimi-K2.6 run: 208,550 tensors, 64 shards and 595 GB on a machine that cannot hold them.

    python benchmarks/rehearsal.py --write-plans PLANS                            where recipes can be read (pydantic)
    python benchmarks/rehearsal.py --plans PLANS --rows store,cp,nvfp4-mse --device cuda --machine h200 --out RESULTS
    python benchmarks/rehearsal.py --rows mxfp4 --narrow 8 --layers 3             the same with narrow matrices
    python benchmarks/rehearsal.py --rows mxfp4 --kill-after 60 --resume          SIGKILL, resume, compare the hashes

The source is a generated object store (`rehearsal_store.py`): `quantize` lists it, prefetches its shards into a bounded
cache and verifies their SHA-256 once the row `store` has computed them. The output goes through the real
`--push --evict`; in place of the Hub, a sink opens each finished shard, hashes a sample and records the hash. Cache and
output are in memory (`--work`). Each run is a process of its own. Run the same command again with `--resume` to
continue a run that was killed. Rows are added to the results of earlier commands in the same work folder.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from rehearsal_store import NARROW, Sink, Store, address, open_store, push_into, read_lines, register
from rehearsal_table import table

from halfbyte.ui.units import nbytes

ROOT = Path(__file__).parents[1]
# Pruned and encoded in one pass from INT4; the recipe kimi-k2.6-nvfp4-reap192 copies the experts of an NVFP4 source.
REAP192 = ("prune.method=reap", "prune.statistics=calibrate", "prune.keep=192", "prune.select=mean")
RECIPES = {
    "mxfp4": ("kimi-k2.6-mxfp4a16", []),
    "nvfp4-max": ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max"]),
    "nvfp4-mse": ("kimi-k2.6-nvfp4-nvidia", []),
    "nvfp4-gptq": ("kimi-k2.6-nvfp4-gptq", []),
    "reap192": ("kimi-k2.6-nvfp4-nvidia", ["quantize.scales=max", *REAP192]),
}
STORE, CP = "store", "cp"
SEQUENCE = 512
DATA = ("news=data/calibration/articles.jsonl", "chat=data/calibration/instructions.jsonl")
POINTS = 300  # of the memory curve
_PIECE_NBYTES = 1 << 24


def plan_name(row: str, given: argparse.Namespace) -> str:
    """Return the file name of a row's plan, which differs for other sizes."""
    return f"{row}_narrow{given.narrow}_layers{given.layers or 'all'}_tokens{given.tokens}.json"


def write_plan(path: Path, row: str, given: argparse.Namespace) -> None:
    """Plan a recipe on the store's headers."""
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.checkpoint.remote.address import Cache
    from halfbyte.checkpoint.remote.mirror import open_remote
    from halfbyte.engine.pipeline import plan
    from halfbyte.recipe.load import load_recipe

    name, overrides = RECIPES[row]
    recipe = load_recipe(name, overrides)
    if recipe.calibrate is not None:
        recipe = load_recipe(name, [*overrides, f"calibrate.sequence_length={SEQUENCE}"])
        recipe = with_data(recipe, DATA, max(given.tokens // SEQUENCE, len(DATA)))
    register()
    path.parent.mkdir(parents=True, exist_ok=True)
    mirror = path.parent / "mirror"
    source = open_remote(address(given.narrow, given.seed), Cache(mirror, 1))
    path.write_text(json.dumps(plan(source, recipe, layers=given.layers).as_dict()))
    shutil.rmtree(mirror)


def child(given: argparse.Namespace) -> None:
    """Run one plan; log every step with its time, so that a killed process leaves its times too."""
    from halfbyte.checkpoint.remote.address import Cache
    from halfbyte.checkpoint.remote.mirror import open_remote
    from halfbyte.engine.pipeline import quantize
    from halfbyte.plan.manifest import read_plan_file

    plan_file, folder = given.child
    Store.sums = given.work / "sums.json"
    register()
    store = open_store(given.narrow, given.seed)

    with (folder / "events.jsonl").open("a") as events:
        lock = threading.Lock()

        def log(kind: str, text: str, **more: Any) -> None:
            with lock:
                line = {"at": time.time(), kind: text, "served_nbytes": store.served_nbytes, **more}
                events.write(json.dumps(line) + "\n")
                events.flush()

        log("phase", "generating distinct experts")
        store.weights  # noqa: B018 - generated once, before any read
        log("phase", "reading headers")
        source = open_remote(address(given.narrow, given.seed), Cache(folder / "cache", given.cache))
        log("phase", "planning")
        planned = read_plan_file(plan_file)
        sink = Sink(folder / "sink.jsonl", given.hash_every)
        with _device_clock(given.device) as clock:
            result = quantize(
                source,
                folder / "out",
                planned.recipe,
                layers=planned.layers,
                planned=planned,
                threads=given.threads,
                device=given.device,
                device_memory=given.device_memory,
                push=push_into(sink, folder / "out"),
                progress=lambda step: log("step", step.shard, done_nbytes=step.done_nbytes),
                begins=lambda phase: log("phase", phase),
            )
        work = clock()
        log("phase", "end", work=work, shards=result.shards, write_nbytes=result.write_nbytes, resumed=result.resumed)


@contextlib.contextmanager
def _device_clock(device: str) -> Any:
    """Yield a function that returns the seconds of each kind of work of a GPU run."""
    if device == "cpu":
        yield dict
        return
    from halfbyte.engine.backends.support import Resources
    from halfbyte.engine.dispatch import backend_of

    passes: list[Any] = []
    backend: Any = backend_of(Resources(device=device))
    run = backend.run_on_device

    def watched(*positional: Any, **named: Any) -> Any:
        result, passing = run(*positional, **named)
        passes.append(passing)
        return result, passing

    backend.run_on_device = watched
    try:
        yield lambda: passes[0].clock.as_dict() if passes else {}
    finally:
        backend.run_on_device = run


class Watch:
    """Peaks of a process tree's memory, of /dev/shm and of the GPU, and a curve of them."""

    def __init__(self, pid: int, work: Path, *, gpu: bool) -> None:
        self._pid, self._work, self._stop = pid, work, threading.Event()
        self._begin, self._shm = time.time(), _used_nbytes(work)
        self.peaks = {"anonymous": 0, "file": 0, "shared": 0, "work_folder": 0, "gpu": 0}
        self.least_available_nbytes = 1 << 62
        self.curve: list[tuple[float, int, int]] = []
        self._smi = _gpu_memory() if gpu else None
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        if self._smi is not None:
            self._threads.append(threading.Thread(target=self._watch_gpu, daemon=True))

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._smi is not None:
            self._smi.terminate()
            self._smi.wait()
        for thread in self._threads:
            thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            sizes = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
            for pid in _tree(self._pid):
                with contextlib.suppress(OSError, ValueError):
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                        name, _, value = line.partition(":")
                        if name in sizes:
                            sizes[name] += int(value.split()[0]) * 1024
            work = _used_nbytes(self._work) - self._shm
            now = {"anonymous": sizes["RssAnon"], "file": sizes["RssFile"], "shared": sizes["RssShmem"]}
            for name, value in {**now, "work_folder": work}.items():
                self.peaks[name] = max(self.peaks[name], value)
            available = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
            self.least_available_nbytes = min(self.least_available_nbytes, available)
            self.curve.append((time.time() - self._begin, sizes["RssAnon"], work))

    def _watch_gpu(self) -> None:
        assert self._smi is not None
        assert self._smi.stdout is not None
        for line in self._smi.stdout:
            with contextlib.suppress(ValueError):
                self.peaks["gpu"] = max(self.peaks["gpu"], int(line) << 20)

    def as_dict(self) -> dict[str, Any]:
        """Return the peaks in bytes, and the curve: seconds, anonymous memory, bytes in the work folder."""
        step = max(len(self.curve) // POINTS, 1)
        groups = [self.curve[at : at + step] for at in range(0, len(self.curve), step)]
        curve = [(round(group[-1][0], 1), max(p[1] for p in group), max(p[2] for p in group)) for group in groups]
        return {"peaks": self.peaks, "least_available_nbytes": self.least_available_nbytes, "curve": curve}


def _gpu_memory() -> subprocess.Popen[str] | None:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-l", "1"]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError:
        return None


def _used_nbytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _tree(pid: int) -> Iterable[int]:
    """Yield a process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child_pid in (task / "children").read_text().split():
                yield from _tree(int(child_pid))


class Rehearsal:
    """Rows one after the other; the results are saved after each."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given, self._work = given, given.work
        self._work.mkdir(parents=True, exist_ok=True)
        self._file = self._work / "rows.json"
        known = json.loads(self._file.read_text()) if self._file.is_file() else {}
        self.found: dict[str, Any] = {"machine": machine(), "rows": known.get("rows", {})}
        Store.sums = self._work / "sums.json"
        register()

    def row(self, name: str) -> None:
        """Measure one row and save it."""
        began = time.perf_counter()
        if name == STORE:
            found = self._store()
        elif name == CP:
            found = self._copy()
        else:
            found = self._quantize(name)
        found |= {"narrow": self._given.narrow, "layers": self._given.layers, "seconds_of_row": _since(began)}
        title = f"{name}, narrow {self._given.narrow}, {self._given.layers or 'all'} layers"
        title += f", {self._given.device}" if name in RECIPES else ""
        title += f", {self._given.tokens:,} tokens" if name in RECIPES and name != "mxfp4" else ""
        title += ", killed and resumed" if found.get("kills") else ""
        self.found["rows"][title] = found
        self._compare(title)
        self.save()
        brief = {key: value for key, value in found.items() if key not in ("hashes", "memory", "layer_ends", "work")}
        print(title, json.dumps(brief), flush=True)

    def save(self) -> None:
        """Write the results to the work folder, and to `--out` with a table."""
        self._file.write_text(json.dumps(self.found))
        if self._given.out is not None:
            self._given.out.mkdir(parents=True, exist_ok=True)
            path = self._given.out / f"rehearsal_{self._given.machine}_{datetime.date.today():%Y%m}.json"
            path.write_text(json.dumps(self.found, indent=None) + "\n")
            path.with_suffix(".md").write_text(table(self.found))

    def _shards(self) -> list[str]:
        """Return the source shards that a run with these layers reads."""
        store = open_store(self._given.narrow, self._given.seed)
        layers, every = self._given.layers or store.geometry.layers, list(store.sizes)
        return every[:layers] + every[store.geometry.layers :]

    def _store(self) -> dict[str, Any]:
        """Read the store with all cores: some of it without hashing, then everything with SHA-256."""
        store, shards = open_store(self._given.narrow, self._given.seed), self._shards()
        store.weights  # noqa: B018
        pieces = [(shard, at) for shard in shards for at in range(0, store.sizes[shard], _PIECE_NBYTES)]
        pieces = pieces[: max(int(self._given.store_nbytes // _PIECE_NBYTES), 1)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            begin = time.perf_counter()
            read = sum(pool.map(lambda piece: len(store.read(*piece, piece[1] + _PIECE_NBYTES)), pieces))
            seconds = time.perf_counter() - begin
            missing = [shard for shard in shards if shard not in store.known_sums()]
            begin = time.perf_counter()
            longest_first = sorted(missing, key=lambda shard: -store.sizes[shard])
            sums = dict(zip(longest_first, pool.map(store.sha256, longest_first), strict=True))
            hashing = time.perf_counter() - begin
        store.save_sums(sums)
        hashed = sum(store.sizes[shard] for shard in missing)
        return {
            "seconds": seconds,
            "nbytes": read,
            "hash_seconds": hashing,
            "hashed_nbytes": hashed,
            "tensors": store.tensors,
            "payload_nbytes": store.payload_nbytes,
            "shards": len(store.sizes),
            "header_nbytes": sum(store.sizes.values()) - store.payload_nbytes,
        }

    def _copy(self) -> dict[str, Any]:
        """Copy files in the work folder with one `cp` per core, up to `--cp-nbytes` bytes in all."""
        store, folder = open_store(self._given.narrow, self._given.seed), self._work / "cp"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        cores, limit = os.cpu_count() or 1, self._given.cp_nbytes
        share = min(limit, _free_nbytes(self._work) // 4) // cores
        shard = max(store.sizes, key=lambda name: store.sizes[name])
        size = min(share, store.sizes[shard]) // _PIECE_NBYTES * _PIECE_NBYTES
        for number in range(cores):
            with (folder / f"source-{number}").open("wb") as file:
                for at in range(0, size, _PIECE_NBYTES):
                    file.write(store.read(shard, at, at + _PIECE_NBYTES))
        rounds = max(limit // max(size * cores, 1), 1)

        def copy(number: int) -> None:
            for _ in range(rounds):
                subprocess.run(["cp", folder / f"source-{number}", folder / f"target-{number}"], check=True)
                (folder / f"target-{number}").unlink()

        begin = time.perf_counter()
        with ThreadPoolExecutor(cores) as pool:
            list(pool.map(copy, range(cores)))
        seconds = time.perf_counter() - begin
        shutil.rmtree(folder)
        return {"seconds": seconds, "nbytes": rounds * size * cores, "processes": cores}

    def _quantize(self, row: str) -> dict[str, Any]:
        """Run a recipe, kill it if asked, resume it, and collect times, memory and hashes."""
        given, folder = self._given, self._work / row
        plans = given.plans or self._work / "plans"
        plan_file = plans / plan_name(row, given)
        if not plan_file.is_file():
            write_plan(plan_file, row, given)
        segments_file = folder / "segments.json"
        goes_on = given.resume and given.kill_after is None
        if not goes_on:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        segments = json.loads(segments_file.read_text()) if segments_file.is_file() else []
        limits = [given.kill_after] if given.kill_after is not None else []
        limits += [None] if given.resume or not limits else []
        for limit in limits:
            segments.append(self._run(plan_file, folder, limit))
            segments_file.write_text(json.dumps(segments))
            if not segments[-1]["killed"]:
                break
        found = _collected(folder, segments)
        if found["finished"]:
            shutil.rmtree(folder)
        return found

    def _run(self, plan_file: Path, folder: Path, limit: float | None) -> dict[str, Any]:
        """Run a child process to its end, or kill it."""
        given = self._given
        command = [sys.executable, __file__, "--child", str(plan_file), str(folder), "--work", str(self._work)]
        for option in ("narrow", "seed", "cache", "device", "device_memory", "threads", "hash_every"):
            if (value := getattr(given, option)) is not None:
                command += [f"--{option.replace('_', '-')}", str(value)]
        began, killed = time.time(), False
        with (folder / "log.txt").open("a") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            with Watch(process.pid, self._work, gpu=given.device != "cpu") as watch:
                try:
                    process.wait(limit)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    killed = True
                except BaseException:
                    process.kill()
                    raise
        if process.returncode and not killed:
            raise SystemExit((folder / "log.txt").read_text()[-4000:])
        return {"began": began, "seconds": time.time() - began, "killed": killed, "memory": watch.as_dict()}

    def _compare(self, title: str) -> None:
        """Compare a row's hashes with those of the undisturbed run."""
        row, plain = self.found["rows"][title], title.removesuffix(", killed and resumed")
        other = self.found["rows"].get(plain)
        if "hashes" in row and other is not None and title != plain and row["finished"]:
            row["same_bytes_as_undisturbed"] = row["hashes"] == other["hashes"]


def _collected(folder: Path, segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of a run from its log of events and its sink."""
    events, sink = read_lines(folder / "events.jsonl"), read_lines(folder / "sink.jsonl")
    phases: dict[str, float] = {}
    marks = [event for event in events if "phase" in event]
    for mark, following in itertools.pairwise(marks):
        if mark["phase"] != "end" and following["phase"] != "generating distinct experts":
            phases[mark["phase"]] = phases.get(mark["phase"], 0.0) + following["at"] - mark["at"]
    steps = [event for event in events if event.get("step")]
    measured = [event for event in steps if event["step"].startswith("measured layer")]
    shards = [line for line in sink if line["name"].endswith(".safetensors")]
    layer_ends = measured or [event for event in steps if event["step"].endswith(".safetensors")]
    served = [event["served_nbytes"] for event, following in itertools.pairwise([*events, {"served_nbytes": -1}])
              if following["served_nbytes"] < event["served_nbytes"]]  # fmt: skip
    verified = {event["step"].partition(":")[0] for event in steps if "SHA-256 verified" in event["step"]}
    seconds = sum(segment["seconds"] for segment in segments)
    last = events[-1] if events else {}
    return {
        "finished": last.get("phase") == "end",
        "kills": sum(segment["killed"] for segment in segments),
        "seconds": seconds,
        "seconds_of_segments": [round(segment["seconds"], 1) for segment in segments],
        "phases": {name: round(value, 2) for name, value in phases.items()},
        "source_nbytes": sum(served),
        "source_shards_verified": len(verified),
        "source_nbytes_per_second": sum(served) / seconds,
        "output_nbytes": sum(line["nbytes"] for line in shards),
        "output_shards": len(shards),
        "output_tensors": sum(line["tensors"] for line in shards),
        "sink_seconds": round(sum(line["seconds"] for line in shards), 2),
        "sink_hashed_shards": sum("hashed" in line for line in shards),
        "resumed_shards": last.get("resumed", 0),
        "layer_ends": [round(event["at"] - segments[0]["began"], 2) for event in layer_ends],
        "work": last.get("work", {}),
        "memory": [segment["memory"] for segment in segments],
        "hashes": {line["name"]: line["sha256"] for line in sorted(sink, key=lambda line: line["name"])},
    }


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 1)


def _free_nbytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def machine() -> dict[str, Any]:
    """Return the machine of the results."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
              if line.startswith("model name")]  # fmt: skip
    facts: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_nbytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    with contextlib.suppress(OSError):
        command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        facts["gpu"] = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    return facts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add: Callable[..., Any] = parser.add_argument
    every = (STORE, CP, *RECIPES)
    add("--rows", default=STORE, help=f"comma-separated: {', '.join(every)}")
    add("--narrow", type=int, choices=NARROW, default=1, help="divide the width of every matrix; 8: about 10 GB")
    add("--layers", type=int, help="only the first decoder layers, as in `halfbyte quantize --layers`")
    add("--tokens", type=int, default=262_144, help="calibration tokens, in rows of 512")
    add("--device", default="cpu")
    add("--device-memory", type=nbytes)
    add("--threads", type=int)
    add("--cache", type=nbytes, default=nbytes("40GB"), help="limit of the shard cache")
    add("--hash-every", type=int, default=8, help="the sink hashes every n-th shard; 1: all, 0: none")
    add("--kill-after", type=float, metavar="SECONDS", help="SIGKILL the run after this time")
    add("--resume", action="store_true", help="continue the killed run; with --kill-after: kill once, then resume")
    add("--store-nbytes", type=nbytes, default=nbytes("60GB"), help="read without hashing in the row 'store'")
    add("--cp-nbytes", type=nbytes, default=nbytes("200GB"), help="bytes that the row 'cp' copies")
    add("--seed", type=int, default=0)
    add("--work", type=Path, default=Path("/dev/shm/rehearsal"), help="folder in memory for cache, output and results")
    add("--plans", type=Path, help="folder of plans from --write-plans")
    add("--write-plans", type=Path, metavar="PLANS", help="write the plans of --rows, or of all recipes")
    add("--machine", default=platform.machine(), help="for the names of the results")
    add("--out", type=Path, help="folder for rehearsal_MACHINE_YYYYMM.json and .md")
    add("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.rows = given.rows.split(",")
    if unknown := [row for row in given.rows if row not in every]:
        parser.error(f"unknown row '{unknown[0]}'; use {', '.join(every)}")
    return given


def main() -> None:
    """Write plans, run a child's part, or measure rows."""
    given = _arguments()
    if given.child:
        child(given)
    elif given.write_plans:
        for row in [row for row in given.rows if row in RECIPES] or RECIPES:
            write_plan(given.write_plans / plan_name(row, given), row, given)
    else:
        rehearsal = Rehearsal(given)
        for row in given.rows:
            rehearsal.row(row)


if __name__ == "__main__":
    main()
