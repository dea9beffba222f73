"""Derive the plan of a checkpoint that has none, from its headers and config and those of its source.

A copy without `halfbyte/`, or a checkpoint of another tool, has no plan. Formats, layers and router rows show which
linears were encoded, decoded or kept, and which experts were kept. The audit checks every tensor against that plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.errors import CheckpointError, RecipeError, UsageError
from halfbyte.families.linears import PLAIN, StoredLinear
from halfbyte.families.model import Model, describe
from halfbyte.formats.registry import FORMATS
from halfbyte.methods.registry import METHODS
from halfbyte.plan.manifest import Plan, make_plan
from halfbyte.plan.pruned import Kept
from halfbyte.plan.rules import DECODE, ENCODE, KEEP, KV_SCALES_MODELOPT, ROUTED, ROUTER, Job
from halfbyte.plan.vllm_matching import declares_kv_cache, read_block
from halfbyte.recipe.decisions import EngineConfig, Quantize, Recipe, Role

if TYPE_CHECKING:
    from halfbyte.audit.inputs import Contents

_TRIED = 5  # groups of linears per role on which methods are tried
_LARGEST = 1 << 26  # size limit of a router: 896 experts x 16,384 F32 values


class NotDerivedError(Exception):
    """Raised if no single recipe turns the source into the output; the argument is the reason."""


class WrongRouterError(NotDerivedError):
    """Raised if a router row of a pruned output is not a row of the source's router."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An encoding variant: method, division by the global scale, and whether fused linears share that scale."""

    method: str
    division: str = "ieee"
    shares: bool = True

    def __str__(self) -> str:
        name = self.method if self.division == "ieee" else f"{self.method}, scales divided as on CUDA"
        return name if self.shares else f"{name}, unshared tensor scales"


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived plan and the encoding variant of each role, None if no known method gives its bytes."""

    plan: Plan
    variants: Mapping[str, Variant | None]

    def sentence(self) -> str:
        """Describe the plan in one sentence."""
        actions = {job.role: job.action for job in self.plan.jobs if job.linears and job.action != KEEP}
        quantize = self.plan.recipe.quantize
        parts: list[str] = []
        for role, action in sorted(actions.items()):
            encoding = f"{quantize.format} by {self.variants.get(role) or 'an unknown method'}" if quantize else ""
            parts.append(f"{role.replace('_', ' ')} {'decoded to bf16' if action == DECODE else encoding}")
        if self.plan.kept is not None:
            parts.append(f"{self.plan.experts} of {self.plan.model.experts} experts kept")
        if self.plan.layers is not None:
            parts.append(f"{self.plan.layers} of {self.plan.model.layers} layers kept")
        return ", ".join([*parts, "everything else unchanged"])


def derive(source: Path, output: Checkpoint, contents: Contents, block: Mapping[str, Any] | None) -> Derived:
    """Return the plan that turns the source into the output; raise NotDerivedError if there is none."""
    origin = open_checkpoint(source)
    model = describe(origin)
    if model.family.name != contents.family.name:
        raise NotDerivedError(f"the source is a {model.family.title}, this is a {contents.family.title}")
    layers = 1 + max((place for place in _layers(contents)), default=-1)
    try:
        kept = _kept_experts(model, origin, contents, output)
        recipe = _recipe(model, contents, output, block)
        plan = make_plan(origin, model, recipe, layers=layers if 0 < layers < model.layers else None, kept=kept)
    except (UsageError, RecipeError, CheckpointError) as error:
        raise NotDerivedError(error.what) from None
    return Derived(plan, _variants(plan, output, contents))


def _layers(contents: Contents) -> Iterator[int]:
    yield from (linear.layer for linear in contents.linears.values() if linear.layer is not None)
    yield from (place.layer for place, _ in contents.plain.values() if place.layer is not None)


def _recipe(model: Model, contents: Contents, output: Checkpoint, block: Mapping[str, Any] | None) -> Recipe:
    formats: dict[str, Counter[tuple[str, str]]] = {}
    before = {linear.role: linear.format for linear in model.linears.values()}
    for linear in contents.linears.values():
        source = model.linears.get(linear.module)
        known = source.format if source is not None else before.get(linear.role, linear.format)
        formats.setdefault(linear.role, Counter())[known, linear.format] += 1
    actions = {role: _action(*pairs.most_common(1)[0][0]) for role, pairs in formats.items()}
    encoded = {role: formats[role].most_common(1)[0][0][1] for role, action in actions.items() if action == ENCODE}
    if len(set(encoded.values())) > 1:
        raise NotDerivedError(f"several target formats: {', '.join(sorted(set(encoded.values())))}")
    roles = cast("dict[Role, Any]", {**dict.fromkeys(get_args(Role), KEEP), **actions})
    quantize = None
    if encoded:
        linears = [linear for linear in contents.linears.values() if linear.role in encoded]
        quantize = _quantize(next(iter(encoded.values())), linears, output, block)
    return Recipe(name="derived", description="", roles=roles, quantize=quantize, shards="layers")


def _action(before: str, after: str) -> str:
    if before == after:
        return KEEP
    return ENCODE if after not in PLAIN else DECODE


def _quantize(
    format: str, linears: list[StoredLinear], output: Checkpoint, block: Mapping[str, Any] | None
) -> Quantize:
    raw = block or {}
    try:
        read, dynamic = read_block(raw), _quantizes_inputs(raw)
    except (AttributeError, TypeError):
        raise NotDerivedError("the quantization block of config.json is malformed") from None
    row = FORMATS[format]
    if not row.encodes:
        raise NotDerivedError(f"the output has linears in {row.title}, which halfbyte does not write")
    suffix = row.input_scale_suffix
    calibrated = sum(suffix in linear.parts for linear in linears) * 2 > len(linears)
    kv_cache = None
    if row.recipe is not None and row.recipe.kv_cache:
        kv_cache = "fp8_cast" if declares_kv_cache(raw) else "none"
        if any(name.endswith(KV_SCALES_MODELOPT) for name in output.tensors):
            kv_cache = "fp8"
    return Quantize(
        format=cast("Any", format),
        scales=row.encodes[0],
        activations="calibrated" if calibrated else "dynamic" if dynamic else "none",
        kv_cache=cast("Any", kv_cache),
        config=EngineConfig(producer_version=None, ignore_patterns=read.ignore),
    )


def _quantizes_inputs(raw: Mapping[str, Any]) -> bool:
    """Whether a block makes engines quantize activations."""
    if raw.get("quant_method") == "quark":
        return bool(cast("Mapping[str, Any]", raw.get("global_quant_config") or {}).get("input_tensors"))
    groups = cast("Mapping[str, Mapping[str, Any]]", raw.get("config_groups") or {})
    return any(group.get("input_activations") for group in groups.values())


def _kept_experts(model: Model, origin: Checkpoint, contents: Contents, output: Checkpoint) -> Kept | None:
    """Return the kept experts of each layer, identified by the rows of its router; None if all were kept."""
    counts: dict[int, int] = {}
    for linear in contents.linears.values():
        if linear.role == ROUTED and linear.layer is not None and linear.expert is not None:
            counts[linear.layer] = max(counts.get(linear.layer, 0), linear.expert + 1)
    if not counts or all(count == model.experts for count in counts.values()):
        return None
    kept: dict[int, tuple[int, ...]] = {}
    with Reader(origin) as before, Reader(output) as after:
        for name, (place, info) in model.plain.items():
            router = contents.plain.get(name)
            if place.role != ROUTER or place.layer not in counts or router is None or len(info.shape) != _MATRIX:
                continue
            shape, dtype = router[1].shape, router[1].dtype
            if (
                len(shape) != _MATRIX
                or 0 in shape
                or shape[1:] != info.shape[1:]
                or dtype != info.dtype
                or info.nbytes > _LARGEST
            ):
                raise NotDerivedError(f"{name} is {dtype} {list(shape)}, the source's {info.dtype} {list(info.shape)}")
            rows = after.raw(router[1]).reshape(shape[0], -1)
            kept[place.layer] = _numbers(before.raw(info).reshape(info.shape[0], -1), rows, name)
    return kept


_MATRIX = 2


def _numbers(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any], name: str) -> tuple[int, ...]:
    """Return the source row numbers of the output's rows, which must be ascending."""
    numbers: list[int] = []
    for number, row in enumerate(after):
        start = numbers[-1] + 1 if numbers else 0
        same = next((other for other in range(start, len(before)) if np.array_equal(before[other], row)), None)
        if same is None:
            what = f"row {number} is not one of the source's rows" + (f" after row {start - 1}" if start else "")
            raise WrongRouterError(f"{name}: {what}")
        numbers.append(same)
    return tuple(numbers)


def variants_of(format: str) -> list[Variant]:
    """Return every known data-free encoding variant of a format."""
    row = FORMATS[format]
    methods = [method for method in row.encodes if METHODS[method].statistics == "none"]
    variants = [Variant(method, division) for division in row.divisions for method in methods]
    return variants + [replace(variant, shares=False) for variant in variants] if row.has_tensor_scale else variants


def _variants(plan: Plan, output: Checkpoint, contents: Contents) -> dict[str, Variant | None]:
    """Return for each role the variant that reproduces most of the tried groups."""
    from halfbyte.audit.reencode_all import Sides, is_whole, reproduces  # noqa: PLC0415 - imports kernels, which compile lazily

    if plan.recipe.quantize is None:
        return {}
    jobs: dict[str, list[Job]] = {}
    for job in plan.jobs:
        if job.action == ENCODE and job.linears and is_whole(job, contents, plan.recipe.quantize.format):
            jobs.setdefault(job.role, []).append(job)
    variants: dict[str, Variant | None] = {}
    format = plan.recipe.quantize.format
    with Reader(plan.checkpoint) as source, Reader(output) as after:
        sides = Sides(source, after, contents)
        for role, role_jobs in jobs.items():
            tried = role_jobs[:: max(1, len(role_jobs) // _TRIED)][:_TRIED]
            votes: Counter[Variant] = Counter()
            for variant in variants_of(format):
                votes[variant] = sum(reproduces(job, variant, format, sides) for job in tried)
                if votes[variant] == len(tried):
                    break
            best = max(votes, key=lambda variant: votes[variant])
            variants[role] = best if votes[best] else None
    return variants
