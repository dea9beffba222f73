"""Format the verdict of a release as one line, with a note if an accepted evaluation is inconclusive."""

from __future__ import annotations

from collections.abc import Sequence

from halfbyte.evidence.evaluation import Evaluation, TaskResult

ACCEPT, INCONCLUSIVE = "ACCEPT", "INCONCLUSIVE"
_SHOWN = 3  # tasks


def headline(verdict: str, evaluation: Evaluation | None) -> str:
    """Return the verdict, with scores and intervals of any inconclusive tasks of an accepted release."""
    if verdict != ACCEPT or evaluation is None:
        return verdict
    undecided = [task for task in evaluation.tasks if task.label == INCONCLUSIVE]
    return f"{verdict}; {_not_decided(undecided, len(evaluation.tasks))}" if undecided else verdict


def _not_decided(tasks: Sequence[TaskResult], total: int) -> str:
    if total == 1:
        return f"accuracy not decided ({_scores(tasks[0])})"
    named = [f"{task.task}: {_scores(task)}" for task in tasks[:_SHOWN]]
    more = [f"and {len(tasks) - _SHOWN} more"] if len(tasks) > _SHOWN else []
    return f"accuracy not decided for {len(tasks)} of {total} tasks ({'; '.join([*named, *more])})"


def _scores(task: TaskResult) -> str:
    """Return both scores of a task, the confidence interval of their difference and the number of items."""
    pair = task.deciding(task.primary)
    if pair is None:
        return "no interval recorded"
    low, high = pair.interval
    return (
        f"{100 * pair.candidate:.1f} against {100 * pair.reference:.1f} %, 95 % {100 * low:+.1f} to {100 * high:+.1f} "
        f"pp, n {pair.items:,}"
    )
