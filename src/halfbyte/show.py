"""What the commands of the pipeline say: values in, lines of the console out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from halfbyte.console import Bar, Column, Output
from halfbyte.errors import UsageError
from halfbyte.pipeline import Result
from halfbyte.plan import summary
from halfbyte.plan.manifest import Plan
from halfbyte.run import Progress
from halfbyte.status import Status
from halfbyte.units import size
from halfbyte.write import write_whole

_MINUTE, _HOUR = 60, 3600


def plan(out: Output, made: Plan, file: Path | None, other: Path | None) -> None:
    """Show a plan, and how it differs from another one."""
    value = summary.as_dict(made)
    if other is not None:
        value["differs_in"] = summary.difference(_read_plan(other), made)
    columns = [
        Column("role", "role"),
        Column("action", "action"),
        Column("tensors", "tensors", number=True),
        Column("before", "before", number=True),
        Column("after", "after", number=True),
    ]
    if out.as_json:
        out.facts(value, [])
    else:
        sizes = [(size(row.read_nbytes), size(row.write_nbytes)) for row in summary.by_role(made)]
        rows = [{**row, "before": a, "after": b} for row, (a, b) in zip(value["roles"], sizes, strict=True)]
        out.table(rows, columns)
        lines = [
            ("total", f"{size(made.read_nbytes)} -> {size(made.write_nbytes)}"),
            ("shards", f"{len(made.shards)}, {value['tensors']:,} tensors"),
            ("memory", f"at most {size(value['peak_memory_nbytes'])} for jobs in flight, whatever the layers"),
            ("plan", f"{value['fingerprint']} (same plan, same bytes)"),
        ]
        if other is not None:
            lines.append(("differs in", ", ".join(value["differs_in"]) or "nothing"))
        out.facts(value, lines)
    if file is not None:
        write_whole(file, (json.dumps(value, indent=1) + "\n").encode())


def _read_plan(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(found)
    except (OSError, ValueError, TypeError):
        fix = "give a plan.json, as in OUT/halfbyte/plan.json"
        raise UsageError("not a plan", where=str(path), fix=fix) from None


def steps(bar: Bar) -> Callable[[Progress], None]:
    """Return what is called for each finished shard: one honest line."""

    def show(progress: Progress) -> None:
        line = f"{progress.shard}  {size(progress.done_nbytes)} of {size(progress.all_nbytes)}"
        line += f"  {duration(progress.seconds)}"
        if progress.sqnr_db is not None and progress.worst is not None:
            line += f"  sqnr {progress.sqnr_db:.1f} dB, worst {progress.worst[1]:.1f} dB {progress.worst[0]}"
        bar.step(line, progress.done_nbytes, progress.all_nbytes)

    return show


def result(out: Output, made: Result) -> None:
    """Show what a run did."""
    lines = [
        ("plan", made.fingerprint),
        ("shards", f"{made.shards}" + (f", {made.resumed} of them from an earlier run, verified" * bool(made.resumed))),
        ("written", f"{size(made.write_nbytes)} in {duration(made.seconds)}"),
    ]
    value = {
        "out": str(made.out),
        "fingerprint": made.fingerprint,
        "shards": made.shards,
        "resumed": made.resumed,
        "write_nbytes": made.write_nbytes,
        "seconds": made.seconds,
    }
    out.facts(value, lines)


def status(out: Output, found: Status) -> None:
    """Show how far a run is."""
    left = f", about {duration(found.eta_seconds)} left" if found.eta_seconds is not None else ""
    lines = [
        ("recipe", found.recipe),
        ("plan", found.fingerprint),
        ("shards", f"{found.shards_done} of {found.shards}{' (whole)' if found.whole else ''}"),
        ("bytes", f"{size(found.nbytes_done)} of {size(found.nbytes)}{left}"),
    ]
    out.facts(found.as_dict(), lines)


def duration(seconds: float) -> str:
    """Return seconds as people say them."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min {seconds % _MINUTE:02.0f} s"
    return f"{seconds / _HOUR:.0f} h {seconds % _HOUR / _MINUTE:02.0f} min"
