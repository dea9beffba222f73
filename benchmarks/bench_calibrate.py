"""Speed and memory of calibrated runs, and of the streamed forward beside transformers' resident one.

    python benchmarks/bench_calibrate.py DIR               all of it (needs 5 GB free in DIR, takes minutes)
    python benchmarks/bench_calibrate.py DIR --lock FILE   takes this lock (flock) while something is timed

whole     kimi-mini, 512 samples of 512 tokens, kimi-k2.6-nvfp4-wafer, by the command line, imports included
forward   some of these rows through all layers, in one process each: streamed from INT4 and measured, and transformers'
          own model, resident in BF16, in batches of 4 rows; one thread each, in CPU seconds, which other work on the
          machine hardly changes
layers    peak resident memory of the whole command with 3, 6 and 12 layers
limit     a checkpoint whose BF16 size is three times a limit, under that limit. The limit is RLIMIT_DATA (all private
          writable memory, touched or not)

Writes benchmarks/results/calibrate_<machine>_<yyyymm>.{json,md}.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from bench_engine import watch_memory
from bench_numerics import ROOT, cpu_model
from synth import KIMI_K26, replace, write_layers

from halfbyte.machine.resources import usable_cores

RECIPE = "kimi-k2.6-nvfp4-wafer"
MINI, ARTICLES = ROOT / "models/kimi-mini", ROOT / "data/calibration/articles.jsonl"
WIDE = replace(
    KIMI_K26, experts=16, width=2048, dense_width=4096, expert_width=1024, vocabulary=4096, heads=8, q_rank=512,
    kv_rank=256, vision_blocks=1, vision_width=64, vision_mlp_width=96,
)  # fmt: skip
MIB = 1 << 20
FORWARDS = ("streamed", "grouped_mm")  # transformers' own choice; its eager experts took three times as long
LIMITED_LAYERS = 33  # 6.4 GB of experts in BF16, and a limit of 2.1 GB
FEW = ["calibrate.sequence_length=128"]
PARTS = ("whole", "forward", "layers", "limit")
FORWARD = """
import json, sys, time
import numpy as np, torch
sys.path.insert(0, "tests/unit/forward")
torch.set_num_threads(1)
which, source, samples = sys.argv[1], sys.argv[2], int(sys.argv[3])
from pathlib import Path
from halfbyte.calibrate.datasets import with_data
from halfbyte.calibrate.stream import Stream, prepare
from halfbyte.families.weights import Weights
from halfbyte.families.model import describe
from halfbyte.recipe.load import load_recipe
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.checkpoint.identity import identity
checkpoint = open_checkpoint(Path(source))
model = describe(checkpoint)
recipe = with_data(load_recipe("kimi-k2.6-nvfp4-wafer"), ["news=data/calibration/articles.jsonl"], samples)
calibration = prepare(checkpoint, model.layers, recipe, identity(checkpoint))
rows = calibration.rows
if which == "streamed":
    with CachingReader(checkpoint) as reader:
        stream = Stream(calibration, Weights(model, reader), threads=1)
        stream.start()
        stream.through(0)  # kernels that are compiled and loaded once
        stream.start()
        begin = time.process_time()
        for layer in range(model.layers):
            stream.through(layer)
        print(time.process_time() - begin)
else:
    from resident import read_small, resident
    net = resident(read_small(Path(source), spread=1.0), torch.bfloat16)
    net.set_experts_implementation(which)
    tokens, real = torch.from_numpy(rows.tokens).long(), torch.from_numpy(rows.real)
    body = net.model  # without the head, which calibration does not run either
    with torch.no_grad():
        body(tokens[:4], attention_mask=real[:4], use_cache=False)
        begin = time.process_time()
        for at in range(0, len(tokens), 4):
            body(tokens[at : at + 4], attention_mask=real[at : at + 4], use_cache=False)
        print(time.process_time() - begin)
"""


@contextlib.contextmanager
def quiet(path):
    """Hold a lock that other work on this machine waits for; say how busy it was."""
    with path.open("w") if path else contextlib.nullcontext() as file:
        if file:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def timed(command, data_nbytes=None):
    """Run a command; return seconds, CPU seconds, peak memory and the machine's load at the end."""
    if data_nbytes:
        command = ["bash", "-c", f'ulimit -d {data_nbytes // 1024} && exec "$@"', "limited", *command]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    peak, said = [0], []
    threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True).start()
    reader = threading.Thread(target=lambda: said.append(process.stderr.read()))
    reader.start()
    printed = process.stdout.read()
    reader.join()
    _, status, usage = os.wait4(process.pid, 0)
    found = {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_nbytes": peak[0],
        "load": os.getloadavg()[0],
    }
    return found | {"status": status, "printed": printed, "said": said[0][-2000:]}


def done(found):
    if found["status"]:
        sys.exit(f"failed:\n{found['said']}")
    return {name: value for name, value in found.items() if name not in ("status", "printed", "said")}


def quantize(source, out, samples, sets=()):
    words = ["-r", RECIPE, "--data", f"news={ARTICLES}", "--samples", str(samples)]
    words += [word for override in sets for word in ("--set", override)]
    return [sys.executable, "-m", "halfbyte", "-q", "quantize", str(source), str(out), *words]


def whole(folder, samples):
    out = folder / "whole"
    found = done(timed(quantize(MINI, out, samples)))
    shutil.rmtree(out)
    return found


def forward(which, samples):
    found = timed([sys.executable, "-c", FORWARD, which, str(MINI), str(samples)])
    return done(found) | {"forward_seconds": float(found["printed"] or "nan")}


def wide(folder, layers):
    """Write a checkpoint whose layers are 200 MB in BF16; return how large all its weights are in BF16."""
    source = folder / "wide"
    shutil.rmtree(source, ignore_errors=True)
    write_layers(source, replace(WIDE, layers=layers))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MINI / name, source / name)
    experts = (layers - 1) * WIDE.experts * 3 * WIDE.width * WIDE.expert_width
    return source, 2 * experts  # the routed ones alone: less than all


def by_layers(folder):
    found = {}
    for layers in (3, 6, 12):
        source, bf16_nbytes = wide(folder, layers)
        size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
        found[layers] = {"source_nbytes": size, "bf16_nbytes": bf16_nbytes}
        for shards in ("layers", "5GB"):
            ran = done(timed(quantize(source, folder / "out", 16, [*FEW, f"shards={shards}"])))
            found[layers][shards] = ran
            shutil.rmtree(folder / "out")
            print(f"{layers} layers, {shards}: {ran['peak_rss_nbytes'] / MIB:.0f} MiB", flush=True)
    return found


def under_limit(folder):
    source, bf16_nbytes = wide(folder, LIMITED_LAYERS)
    limit = bf16_nbytes // 3
    ran = timed(quantize(source, folder / "out", 16, FEW), limit)
    shutil.rmtree(folder / "out", ignore_errors=True)
    refused = timed(quantize(source, folder / "out", 16, FEW), limit // 3)
    shutil.rmtree(folder / "out", ignore_errors=True)
    found = {name: value for name, value in ran.items() if name not in ("status", "printed", "said")}
    found |= {"said": ran["said"][-300:]} if ran["status"] else {}
    found |= {"limit_nbytes": limit, "bf16_nbytes": bf16_nbytes, "finished": not ran["status"]}
    return found | {"a_third_of_it_fails": bool(refused["status"])}


def in_words(result):
    a, forwards, layers, limit = (result[name] for name in ("whole", "forward", "layers", "limit"))
    seconds = {which: min(run["forward_seconds"] for run in runs) for which, runs in forwards.items()}
    streamed = seconds["streamed"]
    theirs = {which: value for which, value in seconds.items() if which != "streamed"}
    best = min(theirs, key=theirs.__getitem__)
    tokens = result["forward_samples"] * 512
    lines = [
        f"# Calibrated runs on {result['cpu']}, {result['cores']} cores, {result['date']}",
        "",
        f"`benchmarks/bench_calibrate.py DIR`. {result['beside']}",
        "",
        f"`halfbyte quantize` of kimi-mini, {RECIPE}, {result['samples']} samples of 512 tokens: "
        f"**{a['seconds']:.0f} s**, "
        f"{a['cpu_seconds']:.0f} CPU seconds, peak memory {a['peak_rss_nbytes'] / 1e9:.2f} GB (goal: under 180 s).",
        "",
        f"| forward of {result['forward_samples']} of these, one thread | CPU s | tokens/s | of transformers |",
        "|---|---|---|---|",
        f"| streamed from INT4, measured | {streamed:.1f} | {tokens / streamed:,.0f} | {streamed / theirs[best]:.2f} |",
        *(
            f"| transformers, resident in BF16, experts `{name}` | {value:.1f} | {tokens / value:,.0f} | "
            f"{value / theirs[best]:.2f} |"
            for name, value in theirs.items()
        ),
        "",
        "The goal is 1.5 of transformers' faster one.",
        "",
        "| layers | source | experts in BF16 | peak memory, a shard a layer | peak memory, one shard |",
        "|---|---|---|---|---|",
        *(
            f"| {number} | {run['source_nbytes'] / 1e9:.2f} GB | {run['bf16_nbytes'] / 1e9:.2f} GB | "
            f"{run['layers']['peak_rss_nbytes'] / 1e9:.2f} GB | {run['5GB']['peak_rss_nbytes'] / 1e9:.2f} GB |"
            for number, run in layers.items()
        ),
        "",
        f"Under a limit: {limit['bf16_nbytes'] / 1e9:.2f} GB of experts in BF16, RLIMIT_DATA of "
        f"{limit['limit_nbytes'] / 1e9:.2f} GB: {'finished' if limit['finished'] else 'FAILED'} with a peak of "
        f"{limit['peak_rss_nbytes'] / 1e9:.2f} GB resident in {limit['seconds']:.0f} s; with a third of that limit it "
        f"{'fails, so the limit bites' if limit['a_third_of_it_fails'] else 'finishes too'}. "
        "RLIMIT_DATA counts private writable memory, touched or not, and no file mappings. There was no systemd, and "
        "so no cgroup.",
    ]
    return "\n".join(lines) + "\n"


def forwards(samples):
    found = {which: [] for which in FORWARDS}
    for which in FORWARDS * 2:  # interleaved, so that a slow minute does not fall on one of them
        found[which].append(forward(which, samples))
        print(f"{which}: {found[which][-1]['forward_seconds']:.1f} s", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="the others stay as they were measured")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--forward-samples", type=int, default=128)
    parser.add_argument("--lock", type=Path, help="a file to lock while something is timed")
    parser.add_argument("--machine", default="xeon-2core")
    parser.add_argument("--beside", default="Nothing else ran.", help="what else ran on the machine, for the record")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for stale in ("out", "whole", "wide"):  # of a benchmark that was stopped
        shutil.rmtree(given.folder / stale, ignore_errors=True)
    today = datetime.date.today()
    name = ROOT / f"benchmarks/results/calibrate_{given.machine}_{today:%Y%m}"
    before = json.loads(name.with_suffix(".json").read_text()) if name.with_suffix(".json").exists() else {}
    result = before | {"cpu": cpu_model(), "cores": usable_cores(), "date": str(today), "beside": given.beside}
    parts = {
        "whole": lambda: {"whole": whole(given.folder, given.samples), "samples": given.samples},
        "forward": lambda: {"forward": forwards(given.forward_samples), "forward_samples": given.forward_samples},
        "layers": lambda: {"layers": by_layers(given.folder)},
        "limit": lambda: {"limit": under_limit(given.folder)},
    }
    for part in given.only:
        with quiet(given.lock if part in ("whole", "forward") else None):  # other processes do not change memory
            result |= parts[part]()
        name.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
        print(part, "is measured", flush=True)
    shutil.rmtree(given.folder / "wide", ignore_errors=True)
    if all(part in result for part in PARTS):
        name.with_suffix(".md").write_text(in_words(json.loads(name.with_suffix(".json").read_text())))


if __name__ == "__main__":
    main()
