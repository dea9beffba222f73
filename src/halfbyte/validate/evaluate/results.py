"""eval.json: everything that a reader needs to trust a score or to repeat it, written whole or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.validate.evaluate.judging import Judged, Label
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
    text = json.dumps(evaluation.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(folder / FILE, text.encode() + b"\n")


def read_head(folder: Path, suite_hash: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read an earlier run's eval.json and refuse one that asked something else."""
    try:
        head = json.loads((folder / FILE).read_bytes())
    except (OSError, ValueError):
        fix = "give the folder that a finished `halfbyte eval -o` wrote"
        raise UsageError("there are no results of a finished run", where=str(folder), fix=fix) from None
    told = head.get("suite", {})
    if told.get("hash") != suite_hash:
        what = f"the baseline asked the suite '{told.get('name')}' in another version or with other files"
        raise UsageError(what, where=str(folder), fix="run the baseline again with this version")
    if head["arguments"].get("limit") != arguments.get("limit"):
        what = f"the baseline ran with --limit {head['arguments'].get('limit')}"
        raise UsageError(what, where=str(folder), fix="give the same --limit")
    return cast("dict[str, Any]", head)
