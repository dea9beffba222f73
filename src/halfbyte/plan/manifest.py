"""The plan as a whole: its jobs, its shards, and a fingerprint over everything that decides a byte.

Same plan, same bytes. The fingerprint is a hash of named parts, so that two plans that differ can say where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, cast

from halfbyte.errors import UsageError
from halfbyte.machine.collector import paused
from halfbyte.models.model import Model
from halfbyte.plan.layout import Shard, lay_out_shards
from halfbyte.plan.pruned import (
    Kept,
    by_layer,
    first_experts,
    kept_digest,
    moe_layers,
    refuse_no_experts,
    refuse_unlike_experts,
    refuse_wrong_choice,
    router_shape,
)
from halfbyte.plan.rules import DECODE, Job, make_jobs
from halfbyte.prune.router import keep_count, refuse_nothing_to_drop
from halfbyte.recipe.decisions import Prune, Recipe
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.headers import TensorInfo

_PIECE_TENSORS = 1024
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
    kept: Kept | None = None  # the experts that stay, where some go
    chosen: bool = True  # whether `kept` is known; if not, it stands for any choice of as many experts of each layer

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

    @property
    def experts(self) -> int:
        """Return how many routed experts a layer of the output has; the most that one has, where they differ."""
        return self.model.experts if self.kept is None else max(len(experts) for experts in self.kept.values())

    def chosen_jobs(self, layer: int, kept: tuple[int, ...]) -> dict[str, Job]:
        """Return the jobs of a layer by name, now that it is known which of its experts stay."""
        return {job.name: job for job in make_jobs(self._layer_models[layer], self.recipe, {layer: kept})}

    def source_shards(self, job: Job) -> set[str]:
        """Return the shards that a job may read: all of its layer's, while it is not known which experts stay."""
        if self.chosen or job.layer is None or job.layer not in self._layer_models:
            return {source.shard for source in job.sources}
        return self._layer_shards[job.layer]

    @cached_property
    def _layer_shards(self) -> Mapping[int, set[str]]:
        return {layer: {info.shard for _, info in model.tensors()} for layer, model in self._layer_models.items()}

    @cached_property
    def _layer_models(self) -> Mapping[int, Model]:
        return by_layer(self.model)

    def parts(self) -> dict[str, str]:
        """Return a hash of each thing that decides bytes."""
        return dict(self._parts)

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        shards = [(shard.name, hashlib.sha256(shard.head).hexdigest()) for shard in self.shards]
        pruned = (
            {} if self.kept is None else {"kept": kept_digest(self.kept) if self.chosen else f"{self.experts} each"}
        )
        return {
            "bytes_version": str(BYTES_VERSION),
            "recipe": self.recipe.fingerprint(),
            "source config": _digest(self.checkpoint.config),
            "source tensors": _headers_digest(self.checkpoint.tensors.values()),
            "layers": str(self.layers or "all"),
            "shards": _digest(shards),
            **pruned,
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


def make_plan(
    checkpoint: Checkpoint, model: Model, recipe: Recipe, *, layers: int | None = None, kept: Kept | None = None
) -> Plan:
    """Decide everything. Reads nothing but what the headers said.

    Where the recipe prunes and `kept` does not say which experts stay, everything else is decided all the same.
    """
    refuse_more_layers(model, layers)
    layers = None if layers == model.layers else layers  # all of them is not a truncation
    chosen = kept is not None or recipe.prune is None
    with paused():
        if kept is not None:
            refuse_wrong_choice(model, checkpoint.config, kept, layers, str(checkpoint.root))
        elif recipe.prune is not None:
            kept = _any_choice(checkpoint, model, recipe.prune, layers)
        jobs = make_jobs(model, recipe, kept)
        if layers is not None:
            _refuse_no_experts(jobs, layers)
            jobs = [job for job in jobs if job.layer is None or job.layer < layers]
        shards = lay_out_shards(jobs, recipe.shard_nbytes)
    return Plan(checkpoint, model, recipe, tuple(jobs), tuple(shards), layers, kept, chosen)


def refuse_more_layers(model: Model, layers: int | None) -> None:
    """Refuse a number of layers that the model has not: nobody who asks for it knows what it would be."""
    if layers is not None and layers > model.layers:
        what = f"{layers} layers are asked for, and the model has {model.layers}"
        raise UsageError(what, where="--layers", fix=f"give {model.layers} or fewer, or leave it out for all of them")


def refuse_nothing_to_prune(plan: Plan) -> None:
    """Refuse a recipe that prunes, and keeps every expert of this model."""
    if plan.recipe.prune is not None:
        refuse_nothing_to_drop(plan.recipe.prune, router_shape(plan.model, plan.checkpoint.config))


def _any_choice(checkpoint: Checkpoint, model: Model, rule: Prune, layers: int | None) -> Kept:
    """Return a choice that is as large as every other that the rule can make."""
    refuse_no_experts(moe_layers(model, layers), str(checkpoint.root))
    if rule.statistics == "calibrate":  # with given ones the choice, and so every size, is known before the first byte
        refuse_unlike_experts(model)
    return first_experts(model, keep_count(rule, router_shape(model, checkpoint.config)), layers)


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


def _headers_digest(tensors: Iterable[TensorInfo]) -> str:
    """Return the digest of the list of all tensors, a piece at a time: the whole text has the size of all headers."""
    found, rest, before = hashlib.sha256(b"["), iter(tensors), b""
    while piece := [tensor[:5] for tensor in islice(rest, _PIECE_TENSORS)]:  # name, dtype, shape, shard, begin
        found.update(before + json.dumps(piece).encode()[1:-1])
        before = b", "
    found.update(b"]")
    return found.hexdigest()[:16]
