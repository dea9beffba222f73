"""The plan: its jobs, its shard layout, and a fingerprint of everything that determines the output bytes.

Equal plans give equal bytes. The fingerprint is a hash of named parts, so that errors can name the parts that differ.

A plan.json has the recipe and the fingerprints that the source must match. The recipe was validated when the plan was
created. When the file is read it is only compared with its own fingerprint, which does not require pydantic or PyYAML.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo, TensorSpec, lay_out
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import UsageError
from halfbyte.families.model import Model
from halfbyte.machine.interrupts import gc_paused
from halfbyte.plan.pruned import (
    Kept,
    by_layer,
    first_experts,
    keep_count,
    kept_digest,
    moe_layers,
    refuse_no_experts,
    refuse_nothing_to_drop,
    refuse_unlike_experts,
    refuse_wrong_choice,
    router_shape,
)
from halfbyte.plan.rules import DECODE, Job, make_jobs
from halfbyte.recipe.decisions import Prune, Recipe

_PIECE_TENSORS = 1024
BYTES_VERSION = 2  # incremented when the same recipe and source give different bytes; see CHANGELOG, Output bytes

_AGAIN = "recreate the plan: halfbyte plan SRC -r RECIPE -o FILE"


@dataclass(frozen=True, slots=True)
class Shard:
    """One output file: its header bytes and the offsets of its tensors."""

    name: str
    head: bytes
    tensors: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Return the size of the file."""
        return self.tensors[-1].end if self.tensors else len(self.head)


def lay_out_shards(jobs: Sequence[Job], shard_nbytes: int | None) -> list[Shard]:
    """Split the outputs into shards in the model's order: one per layer, or filled greedily up to a size."""
    groups = list(_by_size(jobs, shard_nbytes) if shard_nbytes else _by_layer(jobs))
    names = [shard_name(number, len(groups)) for number in range(1, len(groups) + 1)]
    shards: list[Shard] = []
    for name, group in zip(names, groups, strict=True):
        head, tensors = lay_out(group, name)
        shards.append(Shard(name, head, tuple(tensors)))
    return shards


def shard_name(number: int, total: int) -> str:
    """Return the shard's file name in the style of Kimi's releases: five-digit number, six-digit total."""
    return "model.safetensors" if total == 1 else f"model-{number:05d}-of-{total:06d}.safetensors"


def _by_layer(jobs: Sequence[Job]) -> Iterator[list[TensorSpec]]:
    """Yield one group per layer, then one per role outside the layers (embeddings, head and norm together)."""
    groups: dict[tuple[bool, int, str], list[TensorSpec]] = {}
    for job in jobs:
        role = "" if job.layer is not None else ("text" if job.role in ("embed", "head", "norm") else job.role)
        groups.setdefault((job.layer is None, job.layer or 0, role), []).extend(job.outputs)
    for key in sorted(groups, key=lambda key: (key[0], key[1], key[2] != "text", key[2])):
        yield groups[key]


def _by_size(jobs: Sequence[Job], limit: int) -> Iterator[list[TensorSpec]]:
    """Yield groups filled in order; a tensor that would exceed the limit starts a new group."""
    group: list[TensorSpec] = []
    filled = 0
    for job in jobs:
        for spec in job.outputs:
            if group and filled + spec.nbytes > limit:
                yield group
                group, filled = [], 0
            group.append(spec)
            filled += spec.nbytes
    if group:
        yield group


@dataclass(frozen=True)
class Plan:
    """The complete description of an output."""

    checkpoint: Checkpoint
    model: Model
    recipe: Recipe
    jobs: tuple[Job, ...]
    shards: tuple[Shard, ...]
    layers: int | None  # number of decoder layers of a truncated checkpoint
    kept: Kept | None = None  # kept experts of a pruned checkpoint
    chosen: bool = True  # whether the experts in `kept` are final; if not, only their number per layer is

    @property
    def read_nbytes(self) -> int:
        """Return the number of source bytes that are read."""
        return sum(job.read_nbytes for job in self.jobs)

    @property
    def write_nbytes(self) -> int:
        """Return the size of all shards, including headers."""
        return sum(shard.nbytes for shard in self.shards)

    @property
    def decodes(self) -> bool:
        """Whether any tensor is decoded to BF16."""
        return any(job.action == DECODE for job in self.jobs)

    @property
    def experts(self) -> int:
        """Return the number of routed experts per layer of the output; the maximum if layers differ."""
        return self.model.experts if self.kept is None else max(len(experts) for experts in self.kept.values())

    def chosen_jobs(self, layer: int, kept: tuple[int, ...]) -> dict[str, Job]:
        """Return the jobs of a layer by name for its final kept experts."""
        return {job.name: job for job in make_jobs(self._layer_models[layer], self.recipe, {layer: kept})}

    def source_shards(self, job: Job) -> set[str]:
        """Return the shards that a job may read: all shards of its layer while the kept experts are not final."""
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
        """Return a hash of each part that determines output bytes."""
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
        """Return the contents of plan.json, which has everything for resuming and auditing but not the jobs."""
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
    """Build a plan from the headers alone.

    If the recipe prunes and `kept` is None, the plan uses a placeholder selection of the right size.
    """
    refuse_more_layers(model, layers)
    layers = None if layers == model.layers else layers  # all layers: not truncated
    chosen = kept is not None or recipe.prune is None
    with gc_paused():
        if kept is not None:
            refuse_wrong_choice(model, checkpoint.config, kept, layers, str(checkpoint.root))
        elif recipe.prune is not None:
            kept = _placeholder_selection(checkpoint, model, recipe.prune, layers)
        jobs = make_jobs(model, recipe, kept)
        if layers is not None:
            _refuse_no_experts(jobs, layers)
            jobs = [job for job in jobs if job.layer is None or job.layer < layers]
        shards = lay_out_shards(jobs, recipe.shard_nbytes)
    return Plan(checkpoint, model, recipe, tuple(jobs), tuple(shards), layers, kept, chosen)


def refuse_more_layers(model: Model, layers: int | None) -> None:
    """Raise UsageError if more layers are requested than the model has."""
    if layers is not None and layers > model.layers:
        what = f"{layers} layers requested, but the model has {model.layers}"
        raise UsageError(what, where="--layers", fix=f"pass {model.layers} or fewer, or omit it for all layers")


def refuse_nothing_to_prune(plan: Plan) -> None:
    """Raise an error if the recipe prunes but would keep every expert of this model."""
    if plan.recipe.prune is not None:
        refuse_nothing_to_drop(plan.recipe.prune, router_shape(plan.model, plan.checkpoint.config))


def _placeholder_selection(checkpoint: Checkpoint, model: Model, rule: Prune, layers: int | None) -> Kept:
    """Return a selection with the same sizes as any selection the rule can make."""
    refuse_no_experts(moe_layers(model, layers), str(checkpoint.root))
    if rule.statistics == "calibrate":  # statistics from a file give the final selection and sizes
        refuse_unlike_experts(model)
    return first_experts(model, keep_count(rule, router_shape(model, checkpoint.config)), layers)


def _refuse_no_experts(jobs: Sequence[Job], layers: int) -> None:
    """Raise UsageError if the layers contain no experts: engines cannot load an MoE config without expert tensors."""
    first = min((job.layer for job in jobs if job.role == "routed_experts" and job.layer is not None), default=0)
    if first >= layers:
        what = f"the first {layers} layers contain no experts, and engines cannot load them without"
        raise UsageError(what, where="--layers", fix=f"pass {first + 1} or more")


def different_parts(other: object, plan: Plan) -> list[str]:
    """Return the names of the parts in which another plan differs from this one; all if it has no parts."""
    known = cast("Mapping[str, Any]", other if isinstance(other, Mapping) else {})
    return [name for name, digest in plan.parts().items() if known.get(name) != digest]


def refuse_other_plan(other: Mapping[str, Any], plan: Plan, where: str) -> None:
    """Raise UsageError naming the differing parts if a folder's plan is not this one."""
    different = different_parts(other.get("parts"), plan)
    if different:
        what = f"this folder belongs to another plan: {', '.join(different)} differ{'s' if len(different) == 1 else ''}"
        raise UsageError(
            what, where=where, fix="use another output folder, or repeat the command that created this one"
        )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()[:16]


def _headers_digest(tensors: Iterable[TensorInfo]) -> str:
    """Return the digest of the JSON list of all tensors, computed in pieces to save memory."""
    digest, remaining, separator = hashlib.sha256(b"["), iter(tensors), b""
    while piece := [tensor[:5] for tensor in islice(remaining, _PIECE_TENSORS)]:  # name, dtype, shape, shard, begin
        digest.update(separator + json.dumps(piece).encode()[1:-1])
        separator = b", "
    digest.update(b"]")
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The contents of a plan.json."""

    path: Path
    recipe: Recipe
    layers: int | None
    parts: Mapping[str, str]

    def refuse_other(self, plan: Plan) -> None:
        """Raise UsageError naming the differing parts if a plan is not the one in this file."""
        different = different_parts(self.parts, plan)
        if different:
            parts = f"{', '.join(different)} differ{'s' if len(different) == 1 else ''}"
            fix = f"use the source, the layers and the version that it was created with, or {_AGAIN}"
            raise UsageError(f"the plan does not match: {parts}", where=str(self.path), fix=fix)


def read_plan_file(path: Path) -> PlanFile:
    """Read the output of `halfbyte plan -o`, or the plan.json of an output."""
    try:
        content: Any = read_json(path)
        recipe = Recipe.of(content["recipe"])
        parts = {str(name): str(part) for name, part in content["parts"].items()}
        layers = None if parts["layers"] == "all" else int(parts["layers"])
        changed = recipe.fingerprint() != parts["recipe"]
    except OSError as error:
        what = f"cannot read the plan: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix="check the path") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        what = "not a plan of this version of halfbyte, or damaged"
        raise UsageError(what, where=str(path), fix=_AGAIN) from None
    if changed:
        what = "the recipe in this plan was changed after the plan was created"
        raise UsageError(what, where=str(path), fix=_AGAIN)
    return PlanFile(path, recipe, layers, parts)
