"""What `bench_h200.py` found, as Markdown: its runs, and where a MoE layer's seconds go."""

from __future__ import annotations

import os
from typing import Any

STAGES = ("read", "to the device", "attention", "experts", "statistics", "encode", "to the host", "write")
THREADS = {"read": 8, "write": (os.cpu_count() or 1) + 2}


def table(found: dict[str, Any]) -> str:
    """Return all of it."""
    runs = {name: run for name, run in found.items() if isinstance(run, dict) and "seconds_of_layers" in run}
    parts = [_machine(found["machine"]), _runs(runs), _copies(found), _work(runs, found["layers"] - 1)]
    if "decode alone" in found:
        parts.append(f"Decoding a layer's experts alone: {found['decode alone']['seconds']:.2f} s (part of `experts`).")
    return "\n\n".join([*parts, ""])


def _machine(made: dict[str, Any]) -> str:
    said = f"{made['gpu']} (before the runs); {made['cores']} vCPUs, {made['memory_nbytes'] / 1e9:.0f} GB; "
    said += f"Python {made['python']}, torch {made['torch']}, triton {made['triton']}, Linux {made['kernel']}."
    return f"# The pass on one GPU, {made['date']}\n\n{said}"


def _runs(runs: dict[str, Any]) -> str:
    lines = ["| run | mode | seconds of the MoE layers | whole run | host | device: counted, allocated, taken |"]
    lines.append("|---|---|---|---|---|---|")
    for name, run in runs.items():
        memory, layers = run["memory"], ", ".join(f"{one:.2f}" for one in run["seconds_of_layers"])
        device = [run["planned_device_nbytes"], memory["device_allocated_nbytes"], memory["device_in_use_nbytes"]]
        sizes = ", ".join(f"{one / 1e9:.1f}" for one in device)
        host = f"{memory['host_nbytes'] / 1e9:.1f} GB"
        lines.append(f"| {name} | {run['mode']} | {layers} | {run['seconds']:.1f} s | {host} | {sizes} GB |")
    return "\n".join(lines)


def _copies(found: dict[str, Any]) -> str:
    said = [f"Source: {found.get('source', {}).get('nbytes', 0) / 1e9:.1f} GB."]
    for name, run in found.items():
        if isinstance(run, dict) and " cp" in name:
            said.append(f"`cp` and sync, {name.replace(', cp', '')}: {run['seconds']:.1f} s.")
    return " ".join(said)


def _work(runs: dict[str, Any], moe: int) -> str:
    words = "Work for each MoE layer, in seconds of the device or of a thread (the sum over threads by their number; "
    words += "the dense layer's share is in it). Overlap is the largest of them over a layer's time between two ends."
    lines = [words, "", "| run | " + " | ".join(STAGES) + " | overlap |", "|---|" + "---|" * (len(STAGES) + 1)]
    for name, run in runs.items():
        each = [run["work"].get(stage, {"seconds": 0})["seconds"] / THREADS.get(stage, 1) / moe for stage in STAGES]
        wall = sum(run["seconds_of_layers"][1:]) / max(1, moe - 1)
        cells = " | ".join(f"{one:.2f}" for one in each)
        lines.append(f"| {name} | {cells} | {100 * max(each) / wall if wall else 0:.0f} % |")
    return "\n".join(lines)
