"""The results of `rehearsal.py` as Markdown."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

WORK = ("read", "to the device", "attention", "experts", "statistics", "encode", "to the host")


def table(found: dict[str, Any]) -> str:
    """Return all rows."""
    rows = found["rows"]
    runs = {title: row for title, row in rows.items() if "hashes" in row}
    limits = {title: row for title, row in rows.items() if "hashes" not in row}
    parts = [_machine(found["machine"]), _limits(limits), _runs(runs), _memory(runs), _phases(runs), _work(runs)]
    return "\n\n".join([part for part in parts if part] + [""])


def _machine(facts: dict[str, Any]) -> str:
    gpu = f"{facts['gpu']}; " if facts.get("gpu") else ""
    text = f"{gpu}{facts['cpu']}, {facts['cores']} cores, {facts['memory_nbytes'] / 1e9:.0f} GB; "
    text += f"Python {facts['python']}, Linux {facts['kernel']}. `benchmarks/rehearsal.py`."
    return f"# Rehearsal of a whole Kimi-K2.6 run, {facts['date']}\n\n{text}"


def _limits(limits: dict[str, Any]) -> str:
    lines: list[str] = []
    for title, row in limits.items():
        lines.append(
            f"| {title} | {_gb(row['nbytes'])} | {row['seconds']:.1f} | {_rate(row['nbytes'], row['seconds'])} |"
        )
        if row.get("hashed_nbytes"):
            size, seconds = row["hashed_nbytes"], row["hash_seconds"]
            lines.append(f"| {title}, with SHA-256 | {_gb(size)} | {seconds:.1f} | {_rate(size, seconds)} |")
    return _table("Limits: the store alone, and `cp` from memory to memory, on all cores.", "bytes|seconds|GB/s", lines)


def _runs(runs: dict[str, Any]) -> str:
    lines: list[str] = []
    for title, row in runs.items():
        ends = row["layer_ends"]
        each = sorted(later - earlier for earlier, later in itertools.pairwise(ends))
        layer = f"{statistics.median(each):.2f}" if each else "-"
        state = "finished" if row["finished"] else "killed, not resumed yet"
        if "same_bytes_as_undisturbed" in row:
            state = f"{row['kills']} SIGKILL, {row['resumed_shards']} shards kept; "
            state += "same hashes" if row["same_bytes_as_undisturbed"] else "**other hashes**"
        source = f"{_gb(row['source_nbytes'])}, {row['source_shards_verified']} shards by SHA-256"
        cells = [source, _gb(row["output_nbytes"]), f"{row['output_tensors']:,}"]
        cells += [f"{row['seconds']:.1f}", f"{row['source_nbytes_per_second'] / 1e9:.2f}", layer, state]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    head = "source|output|tensors|seconds|source GB/s|median s per layer|result"
    return _table("Runs. The source counts all fetched bytes, headers and samples included.", head, lines)


def _memory(runs: dict[str, Any]) -> str:
    lines: list[str] = []
    for title, row in runs.items():
        names = ("anonymous", "file", "shared", "work_folder", "gpu")
        peaks = {name: max(segment["peaks"][name] for segment in row["memory"]) for name in names}
        curve = row["memory"][-1]["curve"]
        quarters = [max(point[1] for point in curve[len(curve) * at // 4 : len(curve) * (at + 1) // 4] or curve)
                    for at in range(4)]  # fmt: skip
        cells = [*(_gb(peaks[name]) for name in names), ", ".join(f"{value / 1e9:.2f}" for value in quarters)]
        cells.append(_gb(min(segment["least_available_nbytes"] for segment in row["memory"])))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    text = "Peak memory of the process tree. Shared pages are files of the work folder, which is in memory."
    head = "anonymous|mapped files|shared|work folder|GPU|anonymous by quarter of the run, GB|least available"
    return _table(text, head, lines)


def _phases(runs: dict[str, Any]) -> str:
    lines: list[str] = []
    for title, row in runs.items():
        phases = "; ".join(f"{name} {seconds:.1f}" for name, seconds in row["phases"].items() if seconds >= 0.05)
        sink = f"{row['sink_seconds']:.1f} for {row['output_shards']} shards, {row['sink_hashed_shards']} hashed"
        lines.append(f"| {title} | {phases} | {sink} |")
    return _table("Seconds of each phase, and of the sink's thread.", "phases|sink", lines)


def _work(runs: dict[str, Any]) -> str:
    lines = [
        f"| {title} | {' | '.join(_seconds(row['work'], stage) for stage in WORK)} |"
        for title, row in runs.items()
        if row["work"]
    ]
    return _table("Seconds of work of a GPU run (the device, or all threads together).", "|".join(WORK), lines)


def _seconds(work: dict[str, Any], stage: str) -> str:
    return f"{work[stage]['seconds']:.1f}" if stage in work else "-"


def _table(text: str, head: str, lines: list[str]) -> str:
    if not lines:
        return ""
    names = head.split("|")
    return "\n".join([text, "", f"| row | {' | '.join(names)} |", "|---|" + "---|" * len(names), *lines])


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _rate(size: int, seconds: float) -> str:
    return f"{size / seconds / 1e9:.2f}"
