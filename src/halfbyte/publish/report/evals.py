"""Evaluation section: scores with intervals, and differences from the source with the margin."""

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
    """Return the section on evaluation."""
    evaluation = evidence.get("eval")
    if evaluation is None:
        return Section("evaluation", "Evaluation", [missing(evidence, "eval", "task scores")])
    tasks = evaluation["tasks"]
    limit = evaluation["arguments"].get("limit")
    items = f", the first {limit} items of each task" if limit else ""
    blocks: list[Block] = [Say(f"Suite {evaluation['suite']['name']}{items}: {evaluation['label']}")]
    blocks += _forest(tasks)
    columns = ("task", "verdict", "items", "score", "95% CI", "source", "difference", "difference, 95% CI")
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
        comparison = _compared(task)
        if comparison is not None and comparison.get("interval"):
            low, high = (100 * float(limit) for limit in comparison["interval"])
            value = 100 * float(comparison["difference"])
            tooltip = f"{task['task']}: {value:+.1f} points, {low:+.1f} to {high:+.1f}"
            drawn.append(Interval(str(task["task"]), low, value, high, tooltip))
            margins.add(-100 * float(comparison["verdict"]["margin"]))
    if not drawn:
        return [Missing("difference from the source", "the run had no baseline", command_for("eval"))]
    marks = [(0.0, "no difference"), *((margin, "margin") for margin in sorted(margins))]
    about = "Difference from the source in points, with its interval. Vertical lines: no difference, allowed margin."
    return [Figure(about, intervals("Difference from the source", "points relative to the source", drawn, marks))]


def _row(task: Mapping[str, Any]) -> list[str]:
    score = task["candidate"]["by_metric"][task["primary"]]
    comparison = _compared(task)
    low, high = score["interval"]
    row = [str(task["task"]), str(task["label"]), f"{int(score['items']):,}", f"{100 * float(score['value']):.1f}%"]
    row.append(f"{100 * float(low):.1f} to {100 * float(high):.1f}%")
    if comparison is None:
        return [*row, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    low, high = comparison["interval"]
    between = f"{100 * float(low):+.1f} to {100 * float(high):+.1f}"
    return [
        *row,
        f"{100 * float(comparison['reference']):.1f}%",
        f"{100 * float(comparison['difference']):+.1f}",
        between,
    ]
