"""Speed and memory of `halfbyte quantize` on Kimi-K2.6's layers, against copying the same bytes on the same disk.

    python benchmarks/bench_engine.py DIR                  two MoE layers of 384 experts, 20 GB (needs 45 GB free)
    python benchmarks/bench_engine.py DIR --peer PYTHON    and llm-compressor in that environment, on 40 experts

Every run starts with the source out of the page cache (fadvise) and ends with the output on the disk (fsync). "cp" is
`cp -r` and `sync`; "dd" copies shard by shard past the page cache, the most that this disk does for one process. Memory
is the peak resident set of the process; "device reads" is the kernel's count.
Writes benchmarks/results/engine_<machine>_<yyyymm>.{json,md}.
"""

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench_numerics import ROOT, cpu_model, save
from synth import KIMI_K26, replace, write_layers

from halfbyte.machine.resources import usable_cores

RECIPES = ("kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4a16")
PEER_SCHEMES = dict(zip(RECIPES, ("MXFP4A16", "NVFP4A16"), strict=True))
PEER_EXPERTS = 40  # of one layer, 1 GB: the peer takes minutes for them
COPIES = {
    "cp": 'cp -r "$0" "$1" && sync -f "$1"',
    "dd": 'mkdir -p "$1" && for shard in "$0"/*.safetensors; do '
    'dd if="$shard" of="$1/${shard##*/}" bs=16M iflag=direct oflag=direct conv=fsync status=none || exit 1; done',
}


def forget(folder):
    """Take a folder's files out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


def watch_memory(pid, peak):
    """Follow the kernel's high-water mark; ru_maxrss would count this process, from which the child was forked."""
    status = Path(f"/proc/{pid}/status")
    while True:
        try:
            lines = status.read_text().splitlines()
        except OSError:
            return
        peak[0] = max([peak[0], *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))])
        time.sleep(0.05)


def timed(command):
    """Run a command; return wall seconds, CPU seconds, peak memory and device reads of it and its children."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = [0]
    watcher = threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True)
    watcher.start()
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        sys.exit(f"{command} failed:\n{errors.decode()[-2000:]}")
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_nbytes": peak[0],
        "device_read_nbytes": usage.ru_inblock * 512,
    }


def copy(source, out, how):
    forget(source)
    found = timed(["bash", "-c", COPIES[how], str(source), str(out)])
    found["nbytes"] = size(source)
    shutil.rmtree(out)
    return found


def convert(source, out, recipe):
    forget(source)
    found = timed([sys.executable, "-m", "halfbyte", "-q", "quantize", str(source), str(out), "-r", recipe])
    found["nbytes"] = size(source)
    found["written_nbytes"] = size(out)
    shutil.rmtree(out)
    return found


def rate(found):
    return found["nbytes"] / found["seconds"]


def flat_memory(folder):
    """Peak memory with 1, 2 and 4 MoE layers of 64 experts."""
    found = {}
    for layers in (1, 2, 4):
        source = folder / "memory"
        write_layers(source, replace(KIMI_K26, layers=1 + layers, experts=64, vocabulary=4096, vision_blocks=0))
        found[layers] = convert(source, folder / "memory-out", RECIPES[0])["peak_rss_nbytes"]
        shutil.rmtree(source)
    return found


def measure(folder, layers, experts):
    source, out = folder / "source", folder / "out"
    write_layers(source, replace(KIMI_K26, layers=1 + layers, experts=experts, vocabulary=4096, vision_blocks=0))
    result = {"layers": layers, "experts": experts, "nbytes": size(source)}
    rounds = [*COPIES, *RECIPES] * 2  # interleaved, so that a slow minute of the disk does not fall on one of them
    result["runs"] = {what: [] for what in rounds}
    for what in rounds:
        found = copy(source, out, what) if what in COPIES else convert(source, out, what)
        result["runs"][what].append(found)
        print(f"{what}: {found['seconds']:.1f} s", flush=True)
    shutil.rmtree(source)
    result["peak_rss_by_layers"] = flat_memory(folder)
    return result


def beside_peer(folder, python):
    """Time llm-compressor and halfbyte on the same small checkpoint, both with their imports."""
    source, out = folder / "small", folder / "small-out"
    write_layers(source, replace(KIMI_K26, layers=2, experts=PEER_EXPERTS, vocabulary=4096, vision_blocks=0))
    rows, script = {}, ROOT / "benchmarks" / "bench_llmcompressor.py"
    for recipe, scheme in PEER_SCHEMES.items():
        ours = [convert(source, out, recipe) for _ in range(3)]
        forget(source)
        theirs = timed([python, str(script), str(source), str(out), scheme, str(usable_cores())])
        shutil.rmtree(out)
        rows[recipe] = {"halfbyte": ours, "llm-compressor": theirs}
        print(f"{recipe}: {min(run['seconds'] for run in ours):.1f} s, peer {theirs['seconds']:.1f} s", flush=True)
    result = {"nbytes": size(source), "experts": PEER_EXPERTS, "rows": rows}
    shutil.rmtree(source)
    return result


def table(result):
    copied = max(map(rate, result["runs"]["cp"]))
    lines = [
        "| | source GB/s | of cp | seconds (all runs) | CPU seconds | peak memory | device reads |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, runs in result["runs"].items():
        best = max(runs, key=rate)
        cells = [
            name,
            f"{rate(best) / 1e9:.2f}",
            f"{100 * rate(best) / copied:.0f} %",
            ", ".join(f"{run['seconds']:.1f}" for run in runs),
            f"{best['cpu_seconds']:.1f}",
            f"{best['peak_rss_nbytes'] / 1e9:.2f} GB",
            f"{best['device_read_nbytes'] / 1e9:.1f} GB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    memory = ", ".join(f"{n} layers {value / 1e9:.2f} GB" for n, value in result["peak_rss_by_layers"].items())
    lines += ["", f"Peak memory by MoE layers (64 experts each, {RECIPES[0]}): {memory}."]
    return "\n".join([*lines, *peer_table(result.get("peer"))])


def peer_table(peer):
    if peer is None:
        return []
    title = f"Beside llm-compressor {peer['version']} (`model_free_ptq`) on {peer['nbytes'] / 1e9:.2f} GB"
    lines = [f"\n{title}, {peer['experts']} experts, imports included:\n"]
    lines += ["| | halfbyte s | CPU s | llm-compressor s | CPU s | times |", "|---|---|---|---|---|---|"]
    for recipe, row in peer["rows"].items():
        ours, theirs = min(row["halfbyte"], key=lambda run: run["seconds"]), row["llm-compressor"]
        cells = [recipe, *(f"{run[key]:.1f}" for run in (ours, theirs) for key in ("seconds", "cpu_seconds"))]
        lines.append(f"| {' | '.join(cells)} | {theirs['seconds'] / ours['seconds']:.0f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder on the disk to measure; its contents are removed")
    parser.add_argument("--layers", type=int, default=2, help="MoE layers, besides the dense one")
    parser.add_argument("--experts", type=int, default=384)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has llm-compressor")
    parser.add_argument("--machine", default="unnamed", help="name in the file")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    result = measure(options.folder, options.layers, options.experts)
    if options.peer:
        version = subprocess.check_output(
            [options.peer, "-c", "import importlib.metadata as m; print(m.version('llmcompressor'))"], text=True
        )
        result["peer"] = beside_peer(options.folder, options.peer) | {"version": version.strip()}
    result |= {"date": datetime.date.today().isoformat(), "cpu": cpu_model(), "cores": usable_cores()}
    result["command"] = f"benchmarks/bench_engine.py DIR --layers {options.layers} --experts {options.experts}"
    head = (
        f"# halfbyte quantize on {result['cpu']}, {result['cores']} cores, {result['date']}\n\n`{result['command']}`, "
    )
    head += f"{result['nbytes'] / 1e9:.1f} GB of INT4 source with Kimi-K2.6's shapes.\n\n"
    save(f"engine_{options.machine}", result, head + table(result) + "\n")


if __name__ == "__main__":
    main()
