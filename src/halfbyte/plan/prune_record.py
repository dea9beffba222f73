"""The pruning record of a checkpoint folder: kept experts, pruned weights, and the result of the loop test.

A pruned checkpoint that is quantized later is still pruned, so the new output inherits the record: the prune plan
unchanged and, in plan.json under `pruned_before`, its SHA-256, the weights that were pruned, and the verdict of the
loop test, which applied to the checkpoint at that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.identity import short_name
from halfbyte.checkpoint.output_folder import FOLDER, LOOPS, PLAN
from halfbyte.checkpoint.untrusted_files import json_object, plain_bytes
from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import PLAN as PRUNE_PLAN
from halfbyte.plan.prune_plan import PrunePlan, read_prune_plan

BEFORE = "pruned_before"  # in plan.json
_SHA256, _WEIGHTS, _LOOPS = "sha256", "weights", "loops"


@dataclass(frozen=True, slots=True)
class PruneRecord:
    """How a folder was pruned, by its own run or by an earlier one."""

    plan: PrunePlan
    weights: str | None  # short hash of the weights before pruning; None if not recorded
    loops: Mapping[str, Any] | None  # None: not tested
    before: bool  # whether an earlier run pruned it

    @property
    def sentence(self) -> str:
        """Return a one-sentence summary."""
        when = " in an earlier run" if self.before else ""
        return f"pruned{when}: {self.plan.counted()} experts kept in each of {len(self.plan.layers)} layers"


def read_record(folder: Path) -> PruneRecord | None:
    """Return the record of a folder, or None if it has none; UsageError if it cannot be read."""
    path, before = folder / FOLDER / PRUNE_PLAN, json_object(folder / FOLDER / PLAN).get(BEFORE)
    if isinstance(before, dict):
        earlier = cast("dict[str, Any]", before)
        if not path.is_file() or earlier.get(_SHA256) != hashlib.sha256(_bytes(path)).hexdigest():
            what = "the prune plan was changed after the run" if path.is_file() else "the prune plan is missing"
            raise UsageError(what, where=str(path), fix="restore the file")
        return PruneRecord(read_prune_plan(path), earlier.get(_WEIGHTS), earlier.get(_LOOPS), before=True)
    if not path.is_file():
        return None
    loops = json_object(folder / FOLDER / LOOPS) or None
    return PruneRecord(read_prune_plan(path), made_from(folder), loops, before=False)


def _bytes(path: Path) -> bytes:
    try:
        return plain_bytes(path)
    except OSError as error:
        what = f"the prune plan cannot be read: {error.strerror}"
        raise UsageError(what, where=str(path), fix="restore the file") from None


def carry(source: Path, out: Path) -> dict[str, Any]:
    """Copy a source's pruning record to an output; return the entry for the output's plan.json."""
    path = source / FOLDER / PRUNE_PLAN
    if not path.is_file():
        return {}
    raw, source_plan = _bytes(path), json_object(source / FOLDER / PLAN)
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_whole(out / FOLDER / PRUNE_PLAN, raw)
    if isinstance(source_plan.get(BEFORE), dict):
        return {BEFORE: source_plan[BEFORE]}
    loops = json_object(source / FOLDER / LOOPS) or None
    return {BEFORE: {_SHA256: hashlib.sha256(raw).hexdigest(), _WEIGHTS: made_from(source), _LOOPS: loops}}


def made_from(folder: Path) -> str | None:
    """Return the short hash of the weights a folder was created from; None if not recorded."""
    source = json_object(folder / FOLDER / PLAN).get("source")
    return short_name(cast("dict[str, str]", source)) if isinstance(source, dict) else None


def quantized_from(checkpoint: Checkpoint) -> str | None:
    """Return the short hash of the weights a checkpoint was created from, if its shards are the planned ones.

    Its experts then have the same numbers as the source's, unless it was pruned.
    """
    planned = json_object(checkpoint.root / FOLDER / PLAN).get("shards")
    return made_from(checkpoint.root) if planned == dict(checkpoint.shards) else None
