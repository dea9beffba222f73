"""Read and write eval.json, which contains everything needed to reproduce a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.evaluate.judging import Judged, Label
from halfbyte.evidence import evaluation as evidence
from halfbyte.evidence.evaluation import WORST_FIRST
from halfbyte.evidence.measured_files import measured_on
from halfbyte.evidence.record import InvalidRecordError

FILE = "eval.json"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished run."""

    head: Mapping[str, Any]  # versions, arguments, seeds, both sides
    judged: list[Judged]

    @property
    def label(self) -> Label:
        """The worst label of all tasks. A suite is accepted only if every task is."""
        labels = {task.label for task in self.judged}
        return next(label for label in WORST_FIRST if label in labels)

    def record(self, measured: Mapping[str, Any] | None = None) -> evidence.Evaluation:
        """Return the contents of eval.json; `measured` has the files it was measured on."""
        tasks = [task.as_dict() for task in self.judged]
        return evidence.Evaluation.build({**self.head, "label": self.label, "tasks": tasks, **(measured or {})})


def write_results(folder: Path, evaluation: Evaluation) -> None:
    """Write eval.json."""
    evaluation.record(measured_on(folder / FILE)).write(folder / FILE)


def read_baseline(folder: Path) -> evidence.Evaluation:
    """Read an earlier run's eval.json."""
    try:
        return evidence.Evaluation.read(folder / FILE)
    except (FileNotFoundError, InvalidRecordError) as error:
        why = f": {error.what}" if isinstance(error, InvalidRecordError) else ""
        fix = "pass the folder of a finished `halfbyte eval -o`"
        raise UsageError(f"no results of a finished run{why}", where=str(folder), fix=fix) from None


def refuse_other_questions(
    baseline: evidence.Evaluation, folder: Path, ours: Mapping[str, Any], limit: int | None
) -> None:
    """Refuse a baseline with another suite, other data or another --limit."""
    suite = baseline.suite
    if suite.name != ours["name"]:
        what = f"the baseline ran the suite '{suite.name}', this run '{ours['name']}'"
        raise UsageError(what, where=str(folder), fix=f"pass --suite {suite.name}, or another baseline")
    if suite.hash != ours["hash"]:
        what = f"the baseline ran another version of the suite '{suite.name}' or of its task files"
        raise UsageError(what, where=str(folder), fix="run the baseline again with this version")
    other = [task for task, digest in ours["data"].items() if suite.data.get(task) != digest]
    if other:
        what = f"the baseline ran {', '.join(other)} on different data"
        raise UsageError(what, where=str(folder), fix="pass the --data-dir of the baseline, or run the baseline again")
    then = baseline.arguments.limit
    if then != limit:
        what = f"the baseline ran with --limit {then}" if then else "the baseline ran without --limit"
        raise UsageError(what, where=str(folder), fix="pass the same --limit" if then else "omit --limit")


def refuse_missing_items(baseline: evidence.Evaluation, folder: Path, items: int) -> None:
    """Refuse a baseline with missing items before any request is sent."""
    listed = sum(task.candidate.samples for task in baseline.tasks)
    if listed != items:
        what = f"the baseline has {items:,} items, but its eval.json lists {listed:,}"
        raise UsageError(what, where=str(folder), fix="run the baseline's command again; finished requests are reused")
