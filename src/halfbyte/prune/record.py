"""What a folder says of its own pruning: who stayed, on which weights that was done, and what the loop test found.

A pruned checkpoint that is quantized once more is still a pruned one. So the next output carries the record on: the
prune plan as it is, and in plan.json, under `pruned_before`, its SHA-256, the weights that were pruned, and the verdict
of the loop test, which was about the checkpoint as it was then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER, LOOPS, PLAN
from halfbyte.prune.plan_file import PLAN as PRUNE_PLAN
from halfbyte.prune.plan_file import PrunePlan, read_prune_plan
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.foreign import plain_bytes, read_json
from halfbyte.source.identity import short_name
from halfbyte.write import write_whole

BEFORE = "pruned_before"  # in plan.json
_SHA256, _WEIGHTS, _LOOPS = "sha256", "weights", "loops"


@dataclass(frozen=True, slots=True)
class PruneRecord:
    """Of a folder that was pruned: by the run that made it, or before."""

    plan: PrunePlan
    weights: str | None  # the short name of those that were pruned; None: it is not recorded
    loops: Mapping[str, Any] | None  # None: nobody asked
    before: bool  # whether the folder was made of one that was pruned

    @property
    def sentence(self) -> str:
        """Return how many experts stayed, in words."""
        when = " before it was written anew" if self.before else ""
        return f"pruned{when}: {self.plan.counted()} experts stay in each of {len(self.plan.layers)} layers"


def read_record(folder: Path) -> PruneRecord | None:
    """Return the record of a folder; None where it has none; UsageError for one that cannot be read."""
    path, before = folder / FOLDER / PRUNE_PLAN, _object(folder / FOLDER / PLAN).get(BEFORE)
    if isinstance(before, dict):
        earlier = cast("dict[str, Any]", before)
        if not path.is_file() or earlier.get(_SHA256) != _sha256(_bytes(path)):
            what = "the prune plan was changed after the run" if path.is_file() else "the prune plan is missing"
            raise UsageError(what, where=str(path), fix="restore the file")
        return PruneRecord(read_prune_plan(path), earlier.get(_WEIGHTS), earlier.get(_LOOPS), before=True)
    if not path.is_file():
        return None
    loops = _object(folder / FOLDER / LOOPS) or None
    return PruneRecord(read_prune_plan(path), made_from(folder), loops, before=False)


def _bytes(path: Path) -> bytes:
    try:
        return plain_bytes(path)
    except OSError as error:
        what = f"the prune plan cannot be read: {error.strerror}"
        raise UsageError(what, where=str(path), fix="restore the file") from None


def carry(source: Path, out: Path) -> dict[str, Any]:
    """Carry the record of a source that was pruned into an output; return what its plan.json says of it."""
    path = source / FOLDER / PRUNE_PLAN
    if not path.is_file():
        return {}
    raw, made = _bytes(path), _object(source / FOLDER / PLAN)
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_whole(out / FOLDER / PRUNE_PLAN, raw)
    if isinstance(made.get(BEFORE), dict):
        return {BEFORE: made[BEFORE]}
    loops = _object(source / FOLDER / LOOPS) or None
    return {BEFORE: {_SHA256: _sha256(raw), _WEIGHTS: made_from(source), _LOOPS: loops}}


def made_from(folder: Path) -> str | None:
    """Return the short name of the weights that a folder was made from; None where that is not recorded."""
    found = _object(folder / FOLDER / PLAN).get("source")
    return short_name(cast("dict[str, str]", found)) if isinstance(found, dict) else None


def quantized_from(checkpoint: Checkpoint) -> str | None:
    """Return the short name of the weights that a checkpoint is made from, if its shards are those that were planned.

    Its experts are then the same, under the same numbers, unless it was pruned.
    """
    planned = _object(checkpoint.root / FOLDER / PLAN).get("shards")
    return made_from(checkpoint.root) if planned == dict(checkpoint.shards) else None


def _object(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one where there is none to read."""
    try:
        found: Any = read_json(path)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
