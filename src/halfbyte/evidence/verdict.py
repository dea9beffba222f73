"""Format the verdict of a release as one line, with a note if an accepted evaluation is inconclusive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from halfbyte.evidence.fields import (
    mapping,
    number,
    rows,
    whole,
    words,
)

Verdict = Literal["ACCEPT", "REGRESSION", "ANOMALOUS", "INFEASIBLE", "UNFINISHED"]
ACCEPT, INCONCLUSIVE = "ACCEPT", "INCONCLUSIVE"
_SHOWN = 3  # tasks


def headline(verdict: str, evaluation: Mapping[str, Any] | None) -> str:
    """Return the verdict, with scores and intervals of any inconclusive tasks of an accepted release."""
    tasks = undecided(evaluation) if verdict == ACCEPT else []
    return f"{verdict}; {_not_decided(tasks, len(rows(evaluation, 'tasks')))}" if tasks else verdict


def undecided(evaluation: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the inconclusive tasks."""
    return [task for task in rows(evaluation, "tasks") if words(task, "label") == INCONCLUSIVE]


def deciding(compared: Any) -> Mapping[str, Any]:
    """Return the per-item comparison that decides a metric: with several seeds, the one over their average."""
    return mapping(compared, "decides") or mapping(compared)


def _not_decided(tasks: list[Mapping[str, Any]], total: int) -> str:
    if total == 1:
        return f"accuracy not decided ({_scores(tasks[0])})"
    named = [f"{words(task, 'task') or 'a task'}: {_scores(task)}" for task in tasks[:_SHOWN]]
    more = [f"and {len(tasks) - _SHOWN} more"] if len(tasks) > _SHOWN else []
    return f"accuracy not decided for {len(tasks)} of {total} tasks ({'; '.join([*named, *more])})"


def _scores(task: Mapping[str, Any]) -> str:
    """Return both scores of a task, the confidence interval of their difference and the number of items."""
    comparison = deciding(mapping(task, "compared", words(task, "primary") or ""))
    candidate, reference = number(comparison, "candidate"), number(comparison, "reference")
    low, high = number(comparison, "interval", 0), number(comparison, "interval", 1)
    if candidate is None or reference is None or low is None or high is None:
        return "no interval recorded"
    items = whole(comparison, "items")
    count = "" if items is None else f", n {items:,}"
    return (
        f"{100 * candidate:.1f} against {100 * reference:.1f} %, 95 % {100 * low:+.1f} to {100 * high:+.1f} pp{count}"
    )
