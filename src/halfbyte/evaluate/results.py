"""Read and write eval.json, which contains everything needed to reproduce a score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from halfbyte.errors import UsageError
from halfbyte.evidence.evaluation import WORST_FIRST, Evaluation, Label, SuiteFacts, TaskResult
from halfbyte.evidence.measured_files import measured_on
from halfbyte.evidence.record import InvalidRecordError

FILE = "eval.json"


def worst_label(tasks: Sequence[TaskResult]) -> Label:
    """Return the worst label of all tasks. A suite is accepted only if every task is."""
    labels = {task.label for task in tasks}
    return next(label for label in WORST_FIRST if label in labels)


def write_results(folder: Path, evaluation: Evaluation) -> None:
    """Write eval.json, with the files that it was measured on."""
    replace(evaluation, **measured_on(folder / FILE)).write(folder / FILE)


def read_baseline(folder: Path) -> Evaluation:
    """Read an earlier run's eval.json."""
    try:
        return Evaluation.read(folder / FILE)
    except (FileNotFoundError, InvalidRecordError) as error:
        why = f": {error.what}" if isinstance(error, InvalidRecordError) else ""
        fix = "pass the folder of a finished `halfbyte eval -o`"
        raise UsageError(f"no results of a finished run{why}", where=str(folder), fix=fix) from None


def refuse_other_questions(baseline: Evaluation, folder: Path, ours: SuiteFacts, limit: int | None) -> None:
    """Refuse a baseline with another suite, other data or another --limit."""
    suite = baseline.suite
    if suite.name != ours.name:
        what = f"the baseline ran the suite '{suite.name}', this run '{ours.name}'"
        raise UsageError(what, where=str(folder), fix=f"pass --suite {suite.name}, or another baseline")
    if suite.hash != ours.hash:
        what = f"the baseline ran another version of the suite '{suite.name}' or of its task files"
        raise UsageError(what, where=str(folder), fix="run the baseline again with this version")
    other = [task for task, digest in ours.data.items() if suite.data.get(task) != digest]
    if other:
        what = f"the baseline ran {', '.join(other)} on different data"
        raise UsageError(what, where=str(folder), fix="pass the --data-dir of the baseline, or run the baseline again")
    then = baseline.arguments.limit
    if then != limit:
        what = f"the baseline ran with --limit {then}" if then else "the baseline ran without --limit"
        raise UsageError(what, where=str(folder), fix="pass the same --limit" if then else "omit --limit")


def refuse_missing_items(baseline: Evaluation, folder: Path, items: int) -> None:
    """Refuse a baseline with missing items before any request is sent."""
    listed = sum(task.candidate.samples for task in baseline.tasks)
    if listed != items:
        what = f"the baseline has {items:,} items, but its eval.json lists {listed:,}"
        raise UsageError(what, where=str(folder), fix="run the baseline's command again; finished requests are reused")
