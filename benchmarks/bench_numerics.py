"""Speed of the number formats on Kimi-K2.6's expert shapes: halfbyte, its peers, and memory copy, in one run.

    make bench                                            halfbyte and memory copy
    make golden && make bench PEERS=.golden-envs          the peers too, each with its own Python

Rates are in GB/s of the BF16 side (2 bytes a weight), for every stored format; best of several runs. On one
core the process is pinned to it; "all" uses every core.
Writes benchmarks/results/numerics_<machine>_<yyyymm>.{json,md}.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from halfbyte.formats.codec import decode, encode
from halfbyte.formats.encoded import Encoded
from halfbyte.machine.resources import usable_cores

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "golden"))
import inputs  # noqa: E402 - the weights that the peers are measured with

SHAPES = [(2048, 7168), (7168, 2048)]  # gate and up; down
PEER_VERSIONS = {"modelopt": "0.47.0", "compressed-tensors": "0.20.0", "quark": "0.11.1"}

BUFFERS = {shape: np.zeros(shape, np.uint16) for shape in SHAPES}  # a streaming pass decodes into the same memory

OPERATIONS = {
    "INT4 -> BF16": lambda w, q, t: decode(q, out=BUFFERS[w.shape], threads=t),
    "BF16 -> NVFP4 max": lambda w, q, t: encode(w, "nvfp4", method="max", threads=t),
    "BF16 -> NVFP4 mse": lambda w, q, t: encode(w, "nvfp4", method="mse", threads=t),
    "BF16 -> NVFP4 max (compressed-tensors)": lambda w, q, t: encode(w, "nvfp4_ct", threads=t),
    "BF16 -> MXFP4": lambda w, q, t: encode(w, "mxfp4", threads=t),
    "BF16 -> FP8 per channel": lambda w, q, t: encode(w, "fp8_channel", threads=t),
    "BF16 -> INT4 (Kimi's grid)": lambda w, q, t: encode(w, "int4", threads=t),
    "INT4 -> NVFP4 max": lambda w, q, t: encode(q, "nvfp4", method="max", threads=t),
    "INT4 -> NVFP4 mse": lambda w, q, t: encode(q, "nvfp4", method="mse", threads=t),
    "INT4 -> MXFP4": lambda w, q, t: encode(q, "mxfp4", threads=t),
}
GOALS = {
    "INT4 -> BF16": 1.5,
    "BF16 -> NVFP4 max": 0.6,
    "BF16 -> MXFP4": 0.8,
    "INT4 -> NVFP4 max": 1.0,
    "INT4 -> NVFP4 mse": 0.2,
}
HEAD = """`{command}`, best of several runs. Peers run with their own Python on the same matrix and one
core, (n x) is halfbyte's rate over theirs; ModelOpt's sweep is timed on 16 rows and scaled up. "of copy" is the rate on
one core over that of copying the BF16 matrix's bytes.
"""


def best(call, seconds=1.0):
    """Shortest of at least three runs, repeated for about a second."""
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def memory_copy(threads):
    """Bytes a second of copying 512 MiB, counted once (not read plus write)."""
    source, target = np.ones(1 << 29, np.uint8), np.empty(1 << 29, np.uint8)
    target[:] = 1
    if threads == 1:
        return source.nbytes / best(lambda: np.copyto(target, source))
    from concurrent.futures import ThreadPoolExecutor

    parts = [slice(i * source.size // threads, (i + 1) * source.size // threads) for i in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return source.nbytes / best(lambda: list(pool.map(lambda p: np.copyto(target[p], source[p]), parts)))


def ours(shape, threads):
    codes, scale = inputs.kimi_grid(inputs.gaussian(172, shape))  # the peers get the same
    stored = {"weight_packed": inputs.pack_int4(codes), "weight_scale": scale, "weight_shape": np.int32(shape)}
    q = Encoded("int4", shape, stored)
    w = decode(q)
    rates = {}
    for name, operation in OPERATIONS.items():
        operation(w, q, threads)  # compiles
        rates[name] = w.nbytes / best(lambda operation=operation: operation(w, q, threads))
    return rates


def peers(folder, shape, threads):
    rates = {}
    for peer, version in PEER_VERSIONS.items():
        python = folder / f"{peer}-{version}" / "bin" / "python"
        command = [str(python), str(ROOT / "benchmarks" / "bench_peers.py"), peer, *map(str, shape), str(threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            sys.exit(f"{peer} failed: {done.stderr[-2000:]}")
        times = json.loads(done.stdout.splitlines()[-1])
        rates[f"{peer} {version}"] = {name: 2 * shape[0] * shape[1] / seconds for name, seconds in times.items()}
    return rates


def measure(folder):
    cores = sorted(os.sched_getaffinity(0))
    result = {"shapes": {}, "memory_copy": {}}
    for label, threads in (("1", 1), ("all", len(cores))):
        os.sched_setaffinity(0, cores[:1] if threads == 1 else cores)
        result["memory_copy"][label] = memory_copy(threads)
        for shape in SHAPES:
            entry = result["shapes"].setdefault(f"{shape[0]}x{shape[1]}", {})
            entry[label] = {"halfbyte": ours(shape, threads), **(peers(folder, shape, threads) if folder else {})}
    return result


def save(name, result, page, folder=ROOT / "benchmarks" / "results"):
    """Keep a result and the page about it, named by subject, machine and month; show the page."""
    stem = folder / f"{name}_{result['date'][:7].replace('-', '')}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page)
    print(page)


def cpu_model():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def table(result):
    lines = []
    for shape, by_cores in result["shapes"].items():
        one, every = by_cores["1"]["halfbyte"], by_cores["all"]["halfbyte"]
        peer_names = [name for name in by_cores["1"] if name != "halfbyte"]
        head = ["operation", "1 core", "goal", f"{result['cores']} cores", "speed-up", *peer_names, "of copy"]
        lines += [f"### {shape}, GB/s of BF16", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for name in OPERATIONS:
            row = [name, f"{one[name] / 1e9:.2f}", str(GOALS.get(name, "")), f"{every[name] / 1e9:.2f}"]
            row.append(f"{every[name] / one[name]:.2f}")
            for peer in peer_names:
                rate = by_cores["1"][peer].get(name)
                row.append(f"{rate / 1e9:.5f} ({one[name] / rate:.0f}x)" if rate else "")
            row.append(f"{100 * one[name] / result['memory_copy']['1']:.0f} %")
            lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    copy = result["memory_copy"]
    lines.append(f"Memory copy (512 MiB, bytes counted once): {copy['1'] / 1e9:.1f} GB/s on one core, ")
    lines.append(f"{copy['all'] / 1e9:.1f} on all. Peak memory of this process {result['peak_rss_gb']:.2f} GB.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of the peers' environments (made by `make golden`)")
    parser.add_argument(
        "--machine", default=re.sub(r"\W+", "-", cpu_model()).strip("-").lower(), help="name in the file"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)  # before any work
    result = measure(options.peers)
    result["date"] = datetime.date.today().isoformat()
    result["command"] = "benchmarks/bench_numerics.py" + (" --peers .golden-envs" if options.peers else "")
    result["cpu"], result["cores"] = cpu_model(), usable_cores()
    result["versions"] = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba_version()}
    result["peak_rss_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    text = f"# Number formats on {result['cpu']}, {result['date']}\n\n{HEAD.format(**result)}\n{table(result)}\n"
    save(f"numerics_{options.machine}", result, text, options.out)


def numba_version():
    import numba

    return numba.__version__


if __name__ == "__main__":
    main()
