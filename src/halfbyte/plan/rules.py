"""Map each role to its recipe action and build jobs: the tensors to read and the tensors to write.

A `Job` is the unit of work. Linears that engines fuse share a global scale, so they form one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from halfbyte.checkpoint.headers import TensorInfo, TensorSpec, tensor_nbytes
from halfbyte.errors import RecipeError
from halfbyte.families.linears import PLAIN, StoredLinear
from halfbyte.families.model import Model
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.pruned import Kept, kept_in, pruned_linears, router_rows
from halfbyte.recipe.decisions import Recipe

KEEP, DECODE, ENCODE = "keep", "bf16", "quantize"
BIAS = "bias"
ROUTED, ROUTER = "routed_experts", "router"
KV_SCALES = (".k_scale", ".v_scale")  # FP8 KV cache scales, suffixes of all naming schemes
KV_SCALES_MODELOPT = (".k_proj.k_scale", ".v_proj.v_scale")


@dataclass(frozen=True, slots=True)
class Job:
    """A group of linears, or one other tensor, with its source and output tensors.

    `layer` is None outside the decoder layers. `linears` is empty for copied tensors. Linears and outputs have the
    names of the output checkpoint, `sources` have the names and offsets of the source.
    """

    name: str
    role: str
    layer: int | None
    action: str
    linears: tuple[StoredLinear, ...]
    sources: tuple[TensorInfo, ...]
    outputs: tuple[TensorSpec, ...]
    groups: tuple[tuple[StoredLinear, ...], ...] | None = None  # None: one group of all linears

    def fused_groups(self) -> tuple[tuple[StoredLinear, ...], ...]:
        """Return the linears by tensor scale: engines fuse those of a group, which share one."""
        return (self.linears,) if self.groups is None else self.groups

    def copies(self) -> Iterator[tuple[str, tuple[TensorInfo, ...]]]:
        """Yield each output tensor that is copied byte for byte: its name and the source ranges."""
        if self.action == KEEP and len(self.outputs) == 1:
            yield self.outputs[0].name, self.sources  # one range, or the kept rows of a router
        elif self.action == KEEP:
            for output, source in zip(self.outputs, self.sources, strict=True):
                yield output.name, (source,)
        else:
            for linear in self.linears:
                if BIAS in linear.parts:
                    yield f"{linear.module}.{BIAS}", (linear.parts[BIAS],)

    @property
    def read_nbytes(self) -> int:
        """Return the number of source bytes this job reads."""
        return sum([source.end - source.begin for source in self.sources])

    @property
    def write_nbytes(self) -> int:
        """Return the number of bytes this job writes."""
        return sum([_nbytes(output.dtype, output.shape) for output in self.outputs])


_nbytes = cache(tensor_nbytes)  # a model has few shapes, and hundreds of thousands of tensors


def make_jobs(model: Model, recipe: Recipe, kept: Kept | None = None) -> list[Job]:
    """Return the jobs for all output tensors, ordered by layer; jobs outside the layers are last.

    If `kept` is given, dropped experts and their router rows have no job. Stale KV cache scales have no job either.
    """
    linears = model.linears.values() if kept is None else pruned_linears(model, kept)
    jobs = [*_plain_jobs(model, recipe, kept), *_linear_jobs(model, recipe, linears), *_kv_scale_jobs(model, recipe)]
    return sorted(jobs, key=lambda job: (job.layer is None, job.layer or 0, job.name))


def _action(recipe: Recipe, role: str, name: str) -> str:
    action = recipe.roles.get(role)  # pyright: ignore[reportArgumentType, reportCallIssue] - roles of the data files
    if action is None:
        fix = f"add {role} to the recipe's roles; this recipe is for another family"
        raise RecipeError(f"recipe '{recipe.name}' has no action for {role}", where=name, fix=fix)
    return action


def stale_kv_scales(model: Model, recipe: Recipe) -> frozenset[str]:
    """Return the source's KV cache scales to drop, because the output's config declares another KV cache.

    If the source's quantization block is kept, so are its scales. Calibrated scales replace scales under other names.
    """
    rewrites = recipe.quantize is not None or any(
        recipe.roles.get(linear.role) == DECODE  # pyright: ignore[reportArgumentType, reportCallIssue] - as in `_action`
        for linear in model.linears.values()
    )
    if not rewrites:
        return frozenset()
    calibrated = recipe.quantize is not None and recipe.quantize.kv_cache == "fp8"
    same = KV_SCALES_MODELOPT if calibrated else ()
    return frozenset(name for name in model.plain if name.endswith(KV_SCALES) and not name.endswith(same))


def _plain_jobs(model: Model, recipe: Recipe, kept: Kept | None) -> Iterator[Job]:
    stale = stale_kv_scales(model, recipe)
    for name, (place, info) in model.plain.items():
        action = _action(recipe, place.role, name)
        if name in stale:
            continue
        assert action == KEEP  # the recipe schema allows only keep for these roles
        sources, shape = (info,), info.shape
        if place.role == ROUTER and (experts := kept_in(kept, place.layer)) is not None:
            sources, shape = router_rows(info, experts), (len(experts), *info.shape[1:])
        yield Job(name, place.role, place.layer, KEEP, (), sources, (TensorSpec(name, info.dtype, shape),))


def _linear_jobs(model: Model, recipe: Recipe, linears: Iterable[StoredLinear]) -> Iterator[Job]:
    jobs: dict[str, list[StoredLinear]] = {}
    actions: dict[str, str] = {}
    fuses: dict[str, bool] = {}  # by role: whether linears share tensor scales
    whole: dict[str, bool] = {}  # by role: whether the method encodes all linears of a module together
    quantize = recipe.quantize
    for linear in linears:
        role = linear.role
        if role not in actions:
            actions[role] = _action(recipe, role, linear.module)
            fuses[role] = whole[role] = False
            if quantize is not None and actions[role] == ENCODE:
                fuses[role] = FORMATS[quantize.format].has_tensor_scale
                whole[role] = quantize.method_of(role).granularity == "module"
        key = model.family.fused_group(linear.module) if fuses[role] else linear.module
        jobs.setdefault(linear.module.rpartition(".")[0] if whole[role] else key, []).append(linear)
    for key, group in jobs.items():
        members = tuple(sorted(group, key=lambda linear: linear.module) if len(group) > 1 else group)
        role = members[0].role
        action = actions[role]
        if action == KEEP:
            _refuse_mixed_formats(members[0], recipe)
        sources = tuple([info for linear in members for info in linear.parts.values()])
        written = tuple([spec for linear in members for spec in outputs(linear, action, recipe)])
        groups = _fused(members, model, fuses=fuses[role]) if whole[role] else None
        yield Job(key, role, members[0].layer, action, members, sources, written, groups)


def _fused(members: Iterable[StoredLinear], model: Model, *, fuses: bool) -> tuple[tuple[StoredLinear, ...], ...]:
    """Return linears by the tensor scale that they share."""
    groups: dict[str, list[StoredLinear]] = {}
    for linear in members:
        groups.setdefault(model.family.fused_group(linear.module) if fuses else linear.module, []).append(linear)
    return tuple(tuple(group) for group in groups.values())


def mixes_formats(linear: StoredLinear, recipe: Recipe) -> bool:
    """Whether keeping a linear would leave a second quantized format, which one config cannot describe."""
    target = recipe.quantize.format if recipe.quantize is not None else None
    changes = target is not None or DECODE in recipe.roles.values()
    return changes and linear.format not in PLAIN  # the target format too: the ignore list marks kept modules as BF16


def _refuse_mixed_formats(linear: StoredLinear, recipe: Recipe) -> None:
    if mixes_formats(linear, recipe):
        what = f"{linear.role} is stored as {linear.format} and kept, which the output's config cannot describe"
        fix = f"decode it: --set roles.{linear.role}=bf16"
        raise RecipeError(what, where=linear.module, fix=fix)


def _kv_scale_jobs(model: Model, recipe: Recipe) -> Iterator[Job]:
    """Yield jobs for calibrated FP8 KV cache scales under ModelOpt's names, which MLA models use without a k_proj."""
    if recipe.quantize is None or recipe.quantize.kv_cache != "fp8":
        return
    modules = {
        (linear.layer, linear.module.rpartition(".")[0]) for linear in model.linears.values() if _attends(linear)
    }
    for layer, module in sorted(modules, key=str):
        names = [f"{module}{suffix}" for suffix in KV_SCALES_MODELOPT]
        scales = tuple(TensorSpec(name, "F32", ()) for name in names if name not in model.plain)
        if scales:
            yield Job(f"{module}.kv_scales", "attention", layer, ENCODE, (), (), scales)


def _attends(linear: StoredLinear) -> bool:
    return linear.role == "attention"


def outputs(linear: StoredLinear, action: str, recipe: Recipe) -> list[TensorSpec]:
    """Return the output tensors of a linear. The source's input scales are dropped with its format; a bias is kept."""
    kept = [
        TensorSpec(f"{linear.module}.{suffix}", info.dtype, info.shape)
        for suffix, info in linear.parts.items()
        if action == KEEP or suffix == BIAS
    ]
    if action == KEEP:
        return kept
    format, scaled = "bf16", False
    if action == ENCODE:
        assert recipe.quantize is not None
        format, scaled = recipe.quantize.format, recipe.quantize.stores_input_scales
        _refuse_partial_block(linear, format)
    parts = _parts(format, scaled, linear.shape)
    return kept + [TensorSpec(f"{linear.module}.{suffix}", dtype, shape) for suffix, dtype, shape in parts]


@cache  # a model has few shapes, and tens of thousands of linears
def _parts(format: str, scaled: bool, shape: tuple[int, int]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return suffix, dtype and shape of each tensor of a format, the input scale last."""
    row = FORMATS[format]
    parts = [(part.suffix, part.dtype, part.shape(*shape)) for part in row.tensors]
    if scaled:
        assert row.input_scale is not None
        parts.append((row.input_scale.suffix, "F32", row.input_scale.shape))
    return tuple(parts)


def _refuse_partial_block(linear: StoredLinear, format: str) -> None:
    row = FORMATS[format]
    if row.block and linear.shape[1] % row.block:
        what = f"K = {linear.shape[1]} is not a multiple of {row.name}'s block size of {row.block}"
        raise RecipeError(what, where=linear.module, fix=f"set {linear.role} to keep in the recipe")
