"""eval.json: everything that a reader needs to trust a score or to repeat it, written whole or not at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.source.foreign import read_json
from halfbyte.validate.endpoint import values_without_keys
from halfbyte.validate.evaluate.judging import Judged, Label
from halfbyte.validate.lines import encoded
from halfbyte.write import write_whole

FILE = "eval.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A finished run."""

    head: Mapping[str, Any]  # versions, arguments, seeds, both sides
    judged: list[Judged]

    @property
    def label(self) -> Label:
        """The worst of what the tasks say: a suite is accepted only if every task is."""
        labels = {one.label for one in self.judged}
        order: tuple[Label, ...] = ("ANOMALOUS", "REGRESSION", "INCONCLUSIVE", "SCORED", "ACCEPT")
        return next(label for label in order if label in labels)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        whole = {"format": FORMAT, **self.head, "label": self.label, "tasks": [one.as_dict() for one in self.judged]}
        return cast("dict[str, Any]", _finite(whole))


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN; what is not a number is null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_results(folder: Path, evaluation: Evaluation) -> None:
    """Write eval.json."""
    write_whole(folder / FILE, encoded(values_without_keys(evaluation.as_dict()), indent=2))


def read_head(folder: Path) -> dict[str, Any]:
    """Read an earlier run's eval.json."""
    try:
        head = read_json(folder / FILE)
    except (OSError, ValueError):
        head = None
    if not isinstance(head, dict):
        fix = "give the folder that a finished `halfbyte eval -o` wrote"
        raise UsageError("there are no results of a finished run", where=str(folder), fix=fix) from None
    return cast("dict[str, Any]", head)


def refuse_other_questions(head: Mapping[str, Any], folder: Path, ours: Mapping[str, Any], limit: int | None) -> None:
    """Refuse an earlier run that asked another suite, other rows, or another number of them."""
    told = _object(head, "suite")
    if told.get("name") != ours["name"]:
        what = f"the baseline asked the suite '{told.get('name')}', this run asks '{ours['name']}'"
        raise UsageError(what, where=str(folder), fix=f"give --suite {told.get('name')}, or another baseline")
    if told.get("hash") != ours["hash"]:
        what = f"the baseline asked the suite '{told.get('name')}' in another version or with other task files"
        raise UsageError(what, where=str(folder), fix="run the baseline again with this version")
    other = [task for task, digest in ours["data"].items() if _object(told, "data").get(task) != digest]
    if other:
        what = f"the baseline asked {', '.join(other)} with other rows of data"
        raise UsageError(what, where=str(folder), fix="give the --data-dir of the baseline, or run the baseline again")
    then = _object(head, "arguments").get("limit")
    if then != limit:
        what = f"the baseline ran with --limit {then}" if then else "the baseline ran without --limit"
        raise UsageError(what, where=str(folder), fix="give the same --limit" if then else "leave out --limit")


def _object(head: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An empty one where somebody put something else into the file: then nothing in it fits."""
    found = head.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def refuse_missing_items(head: Mapping[str, Any], folder: Path, there: int) -> None:
    """Refuse an earlier run whose items are not all there any more: that shows only after everything was asked."""
    try:
        wanted = sum(int(task["candidate"]["samples"]) for task in head["tasks"])
    except (LookupError, TypeError, ValueError):
        wanted = -1
    if wanted != there:
        what = f"the baseline has {there:,} items, and its eval.json speaks of {max(wanted, 0):,}"
        raise UsageError(what, where=str(folder), fix="run the baseline's command again: it repeats no request")
