"""Printed tables and progress lines of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from halfbyte.evidence.evaluation import Evaluation, Label, SideScores, TaskResult
from halfbyte.statistics.results import Accuracy, OverSeeds, deciding
from halfbyte.ui.console import Column, Level, Output

LEVELS: dict[Label, Level] = {
    "ACCEPT": "good", "SCORED": "good", "INCONCLUSIVE": "note", "REGRESSION": "bad", "ANOMALOUS": "bad",
}  # fmt: skip
_ALONE = (
    Column("task", "task"),
    Column("metric", "metric"),
    Column("items", "items", number=True),
    Column("score", "score % ± SE", number=True),
    Column("interval", "95 % interval"),
    Column("verdict", "verdict"),
)
_COMPARED = (
    *_ALONE[:4],
    Column("other", "reference", number=True),
    Column("difference", "difference, pp", number=True),
    Column("apart", "95 % interval"),
    Column("mcnemar", "McNemar p", number=True),
    Column("z", "cards' z", number=True),
    Column("verdict", "verdict"),
)


def show(out: Output, evaluation: Evaluation) -> None:
    """Print the table and the verdicts, or the JSON."""
    if out.as_json:
        out.facts(evaluation.as_json(), [])
        return
    compared = any(task.reference for task in evaluation.tasks)
    rows = [row for task in evaluation.tasks for row in _rows(task)]
    out.table(rows, _COMPARED if compared else _ALONE)
    same: list[tuple[Level, str]] = [("note", warning)] if (warning := evaluation.same_checkpoint_warning) else []
    out.verdicts([*(sentence for task in evaluation.tasks for sentence in _sentences(task)), *same])


def _rows(judged: TaskResult) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for metric, score in judged.candidate.by_metric.items():
        chosen = metric == judged.primary
        row: dict[str, Any] = {
            "task": judged.task,
            "metric": metric.replace(",none", "").replace(",", " "),
            "items": f"{score.items:,}",
            "score": _score(score),
            "interval": _interval(score.interval, signed=False),
            "verdict": judged.label if chosen else "-",
        }
        other = judged.reference.by_metric.get(metric) if judged.reference else None
        rows.append(row | _difference(judged, metric, other))
    return rows


def _difference(judged: TaskResult, metric: str, other: Accuracy | None) -> dict[str, Any]:
    empty = {"other": None, "difference": None, "apart": None, "mcnemar": None, "z": None}
    comparison = judged.comparisons.get(metric)
    if comparison is None or other is None:
        return empty
    pair = deciding(comparison)
    z = comparison.z_sample if isinstance(comparison, OverSeeds) else comparison.unpaired_z
    return {
        "other": _score(other),
        "difference": f"{100 * pair.difference:+.2f}",
        "apart": _interval(pair.interval, signed=True),
        "mcnemar": None if pair.mcnemar_p is None else f"{pair.mcnemar_p:.2g}",
        "z": None if z is None else f"{z:+.2f}",
    }


def _score(score: Accuracy) -> str:
    error = "" if score.standard_error is None else f" ± {100 * score.standard_error:.2f}"
    return f"{100 * score.value:.2f}{error}"


def _interval(ends: tuple[float, float], *, signed: bool) -> str:
    low, high = (f"{100 * end:+.2f}" if signed else f"{100 * end:.2f}" for end in ends)
    return f"{low} to {high}"


def _sentences(judged: TaskResult) -> list[tuple[Level, str]]:
    name, level = judged.task, LEVELS[judged.label]
    notes: list[tuple[Level, str]] = [("note", f"{name}: {note}") for note in judged.notes]
    if judged.anomalies:
        return [*((level, f"{name}: ANOMALOUS, invalid score: {reason}") for reason in judged.anomalies), *notes]
    comparison = judged.comparisons.get(judged.primary)
    if comparison is None:
        missing = _missing(judged.candidate)
        return [*notes, ("note", f"{name}: {missing}")] if missing else notes
    if (worst := judged.worst_case_difference) is not None:
        text = f"{name}: with missing answers counted against the candidate, the difference is {worst:+.2%}"
        notes.append(("note", text))
    return [(level, f"{name}: {comparison.sentence()}"), *notes]


def _missing(side: SideScores) -> str:
    counts = ((side.errors, "without an answer"), (side.truncated, "truncated"), (side.empty, "empty"))
    return ", ".join(f"{count} of {side.samples} {state}" for count, state in counts if count)


def failure(judged: Sequence[TaskResult]) -> str:
    """Return why the run fails, or an empty string."""
    labels: tuple[Label, ...] = ("REGRESSION", "ANOMALOUS")
    names = {label: ", ".join(row.task for row in judged if row.label == label) for label in labels}
    return "; ".join(f"{label}: {tasks}" for label, tasks in names.items() if tasks)


EVERY_S = 10.0
_TRUSTED = 3  # requests before a rate is shown


class ProgressLines:
    """Print the current task, finished requests, rate and time left to stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._title = ""
        self._start, self._last_line, self._first = 0.0, 0.0, 0

    def __call__(self, title: str, done: int, total: int) -> None:
        """Record the progress. Print it if the last line is old, or at the end."""
        now = time.monotonic()
        if title != self._title:
            self._title, self._start, self._last_line, self._first = title, now, now, done
            if done and done < total:
                self._out.note(f"{title}: {done:,} of {total:,} requests already finished")
        if done == total:
            how = " (all from an earlier run)" if self._first == total else f" in {now - self._start:.0f} s"
            self._out.note(f"{title}: {total:,} requests finished{how}")
        elif now - self._last_line >= EVERY_S and done - self._first >= _TRUSTED:
            self._last_line = now
            rate = (done - self._first) / (now - self._start)
            self._out.note(f"{title}: {done:,} of {total:,}, {rate:.1f}/s, {_left((total - done) / rate)} left")


def _left(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004
