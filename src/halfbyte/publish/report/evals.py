"""Evaluation section: scores with intervals, and differences from the source with the margin."""

from __future__ import annotations

from collections.abc import Sequence

from halfbyte.evidence.evaluation import Evaluation, TaskResult
from halfbyte.evidence.folder import Evidence
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
    evaluation = evidence.get(Evaluation)
    if evaluation is None:
        return Section("evaluation", "Evaluation", [missing(evidence, Evaluation, "task scores")])
    tasks, limit = evaluation.tasks, evaluation.arguments.limit
    items = f", the first {limit} items of each task" if limit else ""
    blocks: list[Block] = [Say(f"Suite {evaluation.suite.name}{items}: {evaluation.label}")]
    blocks += _forest(tasks)
    columns = ("task", "verdict", "items", "score", "95% CI", "source", "difference", "difference, 95% CI")
    rows = [_row(task) for task in tasks]
    levels: list[Level] = [_LEVELS.get(task.label, "") for task in tasks]
    blocks.append(Table("Scores of the primary metric", columns, rows, frozenset(columns[2:]), levels))
    for task in tasks:
        blocks += [Say(f"{task.task}: {note}", "note") for note in (*task.anomalies, *task.notes)]
    return Section("evaluation", "Evaluation", blocks)


def _forest(tasks: Sequence[TaskResult]) -> list[Block]:
    drawn: list[Interval] = []
    margins: set[float] = set()
    for task in tasks:
        pair = task.deciding(task.primary)
        if pair is not None:
            low, high = (100 * limit for limit in pair.interval)
            value = 100 * pair.difference
            tooltip = f"{task.task}: {value:+.1f} points, {low:+.1f} to {high:+.1f}"
            drawn.append(Interval(task.task, low, value, high, tooltip))
            margins.add(-100 * pair.verdict.margin)
    if not drawn:
        return [Missing("difference from the source", "the run had no baseline", command_for(Evaluation))]
    marks = [(0.0, "no difference"), *((margin, "margin") for margin in sorted(margins))]
    about = "Difference from the source in points, with its interval. Vertical lines: no difference, allowed margin."
    return [Figure(about, intervals("Difference from the source", "points relative to the source", drawn, marks))]


def _row(task: TaskResult) -> list[str]:
    score, pair = task.candidate.by_metric.get(task.primary), task.deciding(task.primary)
    row = [task.task, task.label]
    if score is None:
        row += [NOT_MEASURED] * 3
    else:
        low, high = score.interval
        row += [f"{score.items:,}", f"{100 * score.value:.1f}%", f"{100 * low:.1f} to {100 * high:.1f}%"]
    if pair is None:
        return [*row, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED]
    low, high = pair.interval
    between = f"{100 * low:+.1f} to {100 * high:+.1f}"
    return [*row, f"{100 * pair.reference:.1f}%", f"{100 * pair.difference:+.1f}", between]
