"""Scores with their intervals, and against the source: the difference and the margin that was declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Figure,
    Level,
    Missing,
    Say,
    Section,
    Table,
    command_for,
    missing,
)
from halfbyte.publish.report.charts import Interval, intervals

_LEVELS: dict[str, Level] = {"REGRESSION": "bad", "ANOMALOUS": "bad"}


def evals(evidence: Evidence) -> Section:
    """Return the tasks."""
    found = evidence.get("eval")
    if found is None:
        return Section("evaluation", "Evaluation", [missing(evidence, "eval", "task scores")])
    tasks = found["tasks"]
    limit = found["arguments"].get("limit")
    items = f", the first {limit} items of each task" if limit else ""
    blocks: list[Block] = [Say(f"Suite {found['suite']['name']}{items}: {found['label']}")]
    blocks += _forest(tasks)
    columns = ("task", "verdict", "items", "score", "95 % interval", "source", "difference", "difference, interval")
    rows = [_row(task) for task in tasks]
    levels: list[Level] = [_LEVELS.get(str(task["label"]), "") for task in tasks]
    blocks.append(Table("Scores of the primary metric", columns, rows, frozenset(columns[2:]), levels))
    for task in tasks:
        notes = [*task["anomalies"], *task["notes"]]
        blocks += [Say(f"{task['task']}: {note}", "note") for note in notes]
    return Section("evaluation", "Evaluation", blocks)


def _compared(task: Mapping[str, Any]) -> Mapping[str, Any] | None:
    compared: Mapping[str, Any] = task.get("compared") or {}
    return compared.get(task["primary"])


def _forest(tasks: list[Mapping[str, Any]]) -> list[Block]:
    drawn: list[Interval] = []
    margins: set[float] = set()
    for task in tasks:
        one = _compared(task)
        if one is not None and one.get("interval"):
            low, high = (100 * float(limit) for limit in one["interval"])
            value = 100 * float(one["difference"])
            said = f"{task['task']}: {value:+.1f} points, {low:+.1f} to {high:+.1f}"
            drawn.append(Interval(str(task["task"]), low, value, high, said))
            margins.add(-100 * float(one["verdict"]["margin"]))
    if not drawn:
        return [Missing("the difference to the source", "the run had no baseline", command_for("eval"))]
    marks = [(0.0, "no difference"), *((margin, "margin") for margin in sorted(margins))]
    about = "Difference to the source in points, with its interval. The lines: no difference, and the margin allowed."
    return [Figure(about, intervals("Difference to the source", "points against the source", drawn, marks))]


def _row(task: Mapping[str, Any]) -> list[str]:
    mine = task["candidate"]["by_metric"][task["primary"]]
    one = _compared(task)
    low, high = mine["interval"]
    row = [str(task["task"]), str(task["label"]), f"{int(mine['items']):,}", f"{100 * float(mine['value']):.1f} %"]
    row.append(f"{100 * float(low):.1f} to {100 * float(high):.1f} %")
    if one is None:
        return [*row, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    low, high = one["interval"]
    between = f"{100 * float(low):+.1f} to {100 * float(high):+.1f}"
    return [*row, f"{100 * float(one['reference']):.1f} %", f"{100 * float(one['difference']):+.1f}", between]
