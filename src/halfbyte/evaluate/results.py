"""Read and write eval.json, which contains everything needed to reproduce a score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import UsageError
from halfbyte.evaluate.judging import Judged, Label
from halfbyte.evidence.jsonl import encoded
from halfbyte.evidence.measured_files import measured_on

FILE = "eval.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished run."""

    head: Mapping[str, Any]  # versions, arguments, seeds, both sides
    judged: list[Judged]

    @property
    def label(self) -> Label:
        """The worst label of all tasks. A suite is accepted only if every task is."""
        labels = {task.label for task in self.judged}
        order: tuple[Label, ...] = ("ANOMALOUS", "REGRESSION", "INCONCLUSIVE", "SCORED", "ACCEPT")
        return next(label for label in order if label in labels)

    def as_dict(self) -> dict[str, Any]:
        """Return the evaluation for JSON."""
        whole = {"format": FORMAT, **self.head, "label": self.label, "tasks": [task.as_dict() for task in self.judged]}
        return cast("dict[str, Any]", _finite(whole))


def _finite(value: Any) -> Any:
    """Replace infinities and NaN with None, because JSON has neither."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(folder: Path, evaluation: Evaluation) -> None:
    """Write eval.json."""
    value = evaluation.as_dict() | measured_on(folder / FILE)
    write_whole(folder / FILE, encoded(values_without_keys(value), indent=2))


def read_head(folder: Path) -> dict[str, Any]:
    """Read an earlier run's eval.json."""
    try:
        head = read_json(folder / FILE)
    except (OSError, ValueError):
        head = None
    if not isinstance(head, dict):
        fix = "pass the folder of a finished `halfbyte eval -o`"
        raise UsageError("no results of a finished run", where=str(folder), fix=fix) from None
    return cast("dict[str, Any]", head)


def refuse_other_questions(head: Mapping[str, Any], folder: Path, ours: Mapping[str, Any], limit: int | None) -> None:
    """Refuse a baseline with another suite, other data or another --limit."""
    suite = _object(head, "suite")
    if suite.get("name") != ours["name"]:
        what = f"the baseline ran the suite '{suite.get('name')}', this run '{ours['name']}'"
        raise UsageError(what, where=str(folder), fix=f"pass --suite {suite.get('name')}, or another baseline")
    if suite.get("hash") != ours["hash"]:
        what = f"the baseline ran another version of the suite '{suite.get('name')}' or of its task files"
        raise UsageError(what, where=str(folder), fix="run the baseline again with this version")
    other = [task for task, digest in ours["data"].items() if _object(suite, "data").get(task) != digest]
    if other:
        what = f"the baseline ran {', '.join(other)} on different data"
        raise UsageError(what, where=str(folder), fix="pass the --data-dir of the baseline, or run the baseline again")
    then = _object(head, "arguments").get("limit")
    if then != limit:
        what = f"the baseline ran with --limit {then}" if then else "the baseline ran without --limit"
        raise UsageError(what, where=str(folder), fix="pass the same --limit" if then else "omit --limit")


def _object(head: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object of the file, or an empty one if it has another type."""
    value = head.get(key)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def refuse_missing_items(head: Mapping[str, Any], folder: Path, items: int) -> None:
    """Refuse a baseline with missing items before any request is sent."""
    try:
        listed = sum(int(task["candidate"]["samples"]) for task in head["tasks"])
    except (LookupError, TypeError, ValueError):
        listed = -1
    if listed != items:
        what = f"the baseline has {items:,} items, but its eval.json lists {max(listed, 0):,}"
        raise UsageError(what, where=str(folder), fix="run the baseline's command again; finished requests are reused")
