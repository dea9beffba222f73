"""Speed and memory of `halfbyte prune` on one of Kimi-K2.6's layers, against copying the bytes that stay.

    python benchmarks/bench_prune.py DIR                 one MoE layer of 384 experts, 10 GB (needs 21 GB free)
    python benchmarks/bench_prune.py DIR --experts 32    a small one, to see that it works

Which experts stay is drawn at random and differs from layer to layer. "cp" and "dd" copy the pruned checkpoint as it
was written, so all three read and write the same bytes, from a cold cache to the disk (see `bench_engine.py`).
Rates are of the bytes that stay. `prune` also hashes all of them, for its journal.
Writes benchmarks/results/prune_<machine>_<yyyymm>.{json,md}.
"""

import argparse
import datetime
import random
import shutil
import sys
from pathlib import Path

from bench_engine import COPIES, copy, forget, rate, size, timed
from bench_numerics import cpu_model, save
from synth import KIMI_K26, replace, write_layers

from halfbyte.machine.resources import usable_cores
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan, write_prune_plan
from halfbyte.plan.pruned import RouterShape

PRUNE, ROUNDS = "prune", 3


def prune(source, out, plan):
    forget(source)
    command = [sys.executable, "-m", "halfbyte", "-q", "prune", str(source), str(out), "--plan", str(plan)]
    found = timed([*command, "--no-verify"])
    found["nbytes"] = size(out)
    return found


def write_plan(path, layers, experts, keep):
    dice = random.Random(0)
    chosen = {layer: LayerChoice(tuple(sorted(dice.sample(range(experts), keep)))) for layer in range(1, 1 + layers)}
    write_prune_plan(path, PrunePlan(router=RouterShape(experts, KIMI_K26.active_experts), layers=chosen, rule=None))


def measure(folder, layers, experts, keep):
    source, out, plan = folder / "source", folder / "out", folder / "plan.json"
    write_layers(source, replace(KIMI_K26, layers=1 + layers, experts=experts, vocabulary=4096, vision_blocks=0))
    write_plan(plan, layers, experts, keep)
    runs = {what: [] for what in (PRUNE, *COPIES)}
    for _ in range(ROUNDS):  # interleaved, so that a slow minute of the disk does not fall on one of them
        runs[PRUNE].append(prune(source, out, plan))
        for how in COPIES:
            runs[how].append(copy(out, folder / "copy", how))
        shutil.rmtree(out)
        print({what: round(found[-1]["seconds"], 1) for what, found in runs.items()}, flush=True)
    result = {"layers": layers, "experts": experts, "keep": keep, "source_nbytes": size(source), "runs": runs}
    shutil.rmtree(source)
    return result


def table(result):
    copied = max(map(rate, result["runs"]["cp"]))
    lines = ["| | kept GB/s | of cp | seconds (all runs) | CPU seconds | peak memory |", "|---|---|---|---|---|---|"]
    for name, runs in result["runs"].items():
        best = max(runs, key=rate)
        cells = [
            name,
            f"{rate(best) / 1e9:.2f}",
            f"{100 * rate(best) / copied:.0f} %",
            ", ".join(f"{run['seconds']:.1f}" for run in runs),
            f"{best['cpu_seconds']:.1f}",
            f"{max(run['peak_rss_nbytes'] for run in runs) / 1e9:.2f} GB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder on the disk to measure; its contents are removed")
    parser.add_argument("--layers", type=int, default=1, help="MoE layers, besides the dense one")
    parser.add_argument("--experts", type=int, default=384)
    parser.add_argument("--keep", type=int, help="default: half of them")
    parser.add_argument("--machine", default="unnamed", help="name in the file")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    keep = options.keep or options.experts // 2
    result = measure(options.folder, options.layers, options.experts, keep)
    result |= {"date": datetime.date.today().isoformat(), "cpu": cpu_model(), "cores": usable_cores()}
    result["command"] = f"benchmarks/bench_prune.py DIR --layers {options.layers} --experts {options.experts}"
    result["command"] += f" --keep {keep}"
    kept = result["runs"][PRUNE][0]["nbytes"]
    head = f"# halfbyte prune on {result['cpu']}, {result['cores']} cores, {result['date']}\n\n`{result['command']}`: "
    head += f"{kept / 1e9:.1f} of {result['source_nbytes'] / 1e9:.1f} GB of INT4 with Kimi-K2.6's shapes stay.\n\n"
    save(f"prune_{options.machine}", result, head + table(result) + "\n")


if __name__ == "__main__":
    main()
