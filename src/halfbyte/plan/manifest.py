"""The plan as a whole: its jobs, its shards, and a fingerprint over everything that decides a byte.

Same plan, same bytes. The fingerprint is a hash of named parts, so that two plans that differ can say where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from halfbyte.collector import paused
from halfbyte.decisions import Recipe
from halfbyte.errors import UsageError
from halfbyte.models.model import Model
from halfbyte.plan.layout import Shard, lay_out_shards
from halfbyte.plan.rules import DECODE, Job, make_jobs, refuse_pruning
from halfbyte.source.checkpoint import Checkpoint

BYTES_VERSION = 1  # raised whenever the same recipe and source would give other bytes; see CHANGELOG, Output bytes


@dataclass(frozen=True)
class Plan:
    """Everything that will be written."""

    checkpoint: Checkpoint
    model: Model
    recipe: Recipe
    jobs: tuple[Job, ...]
    shards: tuple[Shard, ...]
    layers: int | None  # only so many decoder layers, for a truncated checkpoint

    @property
    def read_nbytes(self) -> int:
        """Return how much of the source is read."""
        return sum(job.read_nbytes for job in self.jobs)

    @property
    def write_nbytes(self) -> int:
        """Return the size of all shards, headers included."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def decodes(self) -> bool:
        """Whether anything that was quantized is not any more."""
        return any(job.action == DECODE for job in self.jobs)

    def parts(self) -> dict[str, str]:
        """Return a hash of each thing that decides bytes."""
        return dict(self._parts)

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        tensors = self.checkpoint.tensors.values()
        headers = [tensor[:5] for tensor in tensors]  # name, dtype, shape, shard, begin
        shards = [(shard.name, hashlib.sha256(shard.head).hexdigest()) for shard in self.shards]
        return {
            "bytes_version": str(BYTES_VERSION),
            "recipe": self.recipe.fingerprint(),
            "source config": _digest(self.checkpoint.config),
            "source tensors": _digest(headers),
            "layers": str(self.layers or "all"),
            "shards": _digest(shards),
        }

    def fingerprint(self) -> str:
        """Return the hash of all parts."""
        return _digest(self.parts())

    def as_dict(self) -> dict[str, Any]:
        """Return what plan.json holds: what is needed to resume, to audit and to explain, not the jobs themselves."""
        return {
            "fingerprint": self.fingerprint(),
            "parts": self.parts(),
            "recipe": self.recipe.as_dict(),
            "read_nbytes": self.read_nbytes,
            "write_nbytes": self.write_nbytes,
            "shards": {shard.name: shard.nbytes for shard in self.shards},
        }


def make_plan(checkpoint: Checkpoint, model: Model, recipe: Recipe, *, layers: int | None = None) -> Plan:
    """Decide everything. Reads nothing but what the headers said."""
    refuse_pruning(recipe)
    layers = layers if layers is not None and layers < model.layers else None  # all of them is not a truncation
    with paused():
        jobs = make_jobs(model, recipe)
        if layers is not None:
            _refuse_no_experts(jobs, layers)
            jobs = [job for job in jobs if job.layer is None or job.layer < layers]
        shards = lay_out_shards(jobs, recipe.shard_nbytes)
    return Plan(checkpoint, model, recipe, tuple(jobs), tuple(shards), layers)


def _refuse_no_experts(jobs: Sequence[Job], layers: int) -> None:
    """A config that speaks of experts and no tensor that is one: no engine loads that."""
    first = min((job.layer for job in jobs if job.role == "routed_experts" and job.layer is not None), default=0)
    if first >= layers:
        what = f"the first {layers} layers hold no experts, and no engine would load them alone"
        raise UsageError(what, where="--layers", fix=f"give {first + 1} or more")


def different_parts(theirs: object, plan: Plan) -> list[str]:
    """Return which parts of another plan differ from this one: all of them where there are none."""
    known = cast("Mapping[str, Any]", theirs if isinstance(theirs, Mapping) else {})
    return [name for name, digest in plan.parts().items() if known.get(name) != digest]


def refuse_other_plan(found: Mapping[str, Any], plan: Plan, where: str) -> None:
    """Two plans never share a folder; say which part differs."""
    different = different_parts(found.get("parts"), plan)
    if different:
        what = f"this folder belongs to another plan: {', '.join(different)} differ{'s' if len(different) == 1 else ''}"
        raise UsageError(what, where=where, fix="give another output folder, or repeat the command that began this one")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]
