"""Role x recipe -> fate: for each linear and each other tensor, which stored tensors are read and what is written.

A `Job` is what must be done at once: linears that engines fuse share a tensor scale, so they are one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from halfbyte.errors import RecipeError
from halfbyte.models.linears import PLAIN, StoredLinear
from halfbyte.models.model import Model
from halfbyte.numerics.formats import FORMATS
from halfbyte.plan.pruned import Kept, kept_in, pruned_linears, router_rows
from halfbyte.recipe.decisions import COMPENSATED, Quantize, Recipe
from halfbyte.source.headers import TensorInfo, TensorSpec, tensor_nbytes

KEEP, DECODE, ENCODE = "keep", "bf16", "quantize"
BIAS = "bias"
ROUTED, ROUTER = "routed_experts", "router"
# The name and shape of a calibrated input scale in each spelling.
CALIBRATED_INPUTS = {"nvfp4": ("input_scale", ()), "nvfp4_ct": ("input_global_scale", (1,))}


@dataclass(frozen=True, slots=True)
class Job:
    """Some linears, or one other tensor, with what is read and what is written.

    `layer` is None outside the decoder layers; `linears` is empty for tensors that are copied. Names of linears and
    outputs are those that are written; `sources` have the names and places of the checkpoint that is read.
    """

    name: str
    role: str
    layer: int | None
    action: str
    linears: tuple[StoredLinear, ...]
    sources: tuple[TensorInfo, ...]
    outputs: tuple[TensorSpec, ...]

    def copies(self) -> Iterator[tuple[str, tuple[TensorInfo, ...]]]:
        """Yield what is passed on byte for byte: each output's name, and the stretches of the source that it is of."""
        if self.action == KEEP and len(self.outputs) == 1:
            yield self.outputs[0].name, self.sources  # one, or the rows of a router that stay
        elif self.action == KEEP:
            for output, source in zip(self.outputs, self.sources, strict=True):
                yield output.name, (source,)
        else:
            for linear in self.linears:
                if BIAS in linear.parts:
                    yield f"{linear.module}.{BIAS}", (linear.parts[BIAS],)

    @property
    def read_nbytes(self) -> int:
        """Return how much of the source this job reads."""
        return sum([source.end - source.begin for source in self.sources])

    @property
    def write_nbytes(self) -> int:
        """Return how much it writes."""
        return sum([_nbytes(output.dtype, output.shape) for output in self.outputs])


_nbytes = cache(tensor_nbytes)  # a model has few shapes, and hundreds of thousands of tensors


def make_jobs(model: Model, recipe: Recipe, kept: Kept | None = None) -> list[Job]:
    """Return the fate of every tensor, in the model's order: what stands before the layers, layers, what follows.

    Where `kept` says which experts of a layer stay, the others and their rows in the router have none.
    """
    linears = model.linears.values() if kept is None else pruned_linears(model, kept)
    jobs = [*_plain_jobs(model, recipe, kept), *_linear_jobs(model, recipe, linears), *_kv_scale_jobs(model, recipe)]
    return sorted(jobs, key=lambda job: (job.layer is None, job.layer or 0, job.name))


def method_of(role: str, quantize: Quantize) -> str:
    """Return how scales are chosen. What is no routed expert is a few percent of the weights, and never compensated."""
    return "mse" if quantize.scales == COMPENSATED and role != ROUTED else quantize.scales


def _action(recipe: Recipe, role: str, name: str) -> str:
    action = recipe.roles.get(role)  # pyright: ignore[reportArgumentType, reportCallIssue] - roles of the data files
    if action is None:
        fix = f"name {role} in the recipe's roles; this recipe is for another family"
        raise RecipeError(f"recipe '{recipe.name}' does not say what happens to {role}", where=name, fix=fix)
    return action


def _plain_jobs(model: Model, recipe: Recipe, kept: Kept | None) -> Iterator[Job]:
    for name, (place, info) in model.plain.items():
        action = _action(recipe, place.role, name)
        assert action == KEEP  # the recipe's schema allows nothing else for these roles
        sources, shape = (info,), info.shape
        if place.role == ROUTER and (experts := kept_in(kept, place.layer)) is not None:
            sources, shape = router_rows(info, experts), (len(experts), *info.shape[1:])
        yield Job(name, place.role, place.layer, KEEP, (), sources, (TensorSpec(name, info.dtype, shape),))


def _linear_jobs(model: Model, recipe: Recipe, every: Iterable[StoredLinear]) -> Iterator[Job]:
    groups: dict[str, list[StoredLinear]] = {}
    actions: dict[str, str] = {}
    fuses = recipe.quantize is not None and _shares_scale(recipe.quantize.format)
    for linear in every:
        if linear.role not in actions:
            actions[linear.role] = _action(recipe, linear.role, linear.module)
        fused = fuses and actions[linear.role] == ENCODE
        key = model.architecture.fused_group(linear.module) if fused else linear.module
        groups.setdefault(key, []).append(linear)
    for key, linears in groups.items():
        members = tuple(sorted(linears, key=lambda linear: linear.module) if len(linears) > 1 else linears)
        action = actions[members[0].role]
        if action == KEEP:
            _refuse_mixed_formats(members[0], recipe)
        sources = tuple([info for linear in members for info in linear.parts.values()])
        written = tuple([spec for linear in members for spec in outputs(linear, action, recipe)])
        yield Job(key, members[0].role, members[0].layer, action, members, sources, written)


def mixes_formats(linear: StoredLinear, recipe: Recipe) -> bool:
    """Whether keeping a linear leaves a second quantized format: a config describes one, engines would misread it."""
    target = recipe.quantize.format if recipe.quantize is not None else None
    changes = target is not None or DECODE in recipe.roles.values()
    return changes and linear.format not in PLAIN  # the target's too: the ignore list says that kept means BF16


def _refuse_mixed_formats(linear: StoredLinear, recipe: Recipe) -> None:
    if mixes_formats(linear, recipe):
        what = f"{linear.role} is stored as {linear.format} and kept, but the output's config would not say so"
        fix = f"decode it: --set roles.{linear.role}=bf16"
        raise RecipeError(what, where=linear.module, fix=fix)


def _kv_scale_jobs(model: Model, recipe: Recipe) -> Iterator[Job]:
    """Calibrated scales of an FP8 KV cache, under the names that ModelOpt writes even where MLA has no k_proj."""
    if recipe.quantize is None or recipe.quantize.kv_cache != "fp8":
        return
    modules = {
        (linear.layer, linear.module.rpartition(".")[0]) for linear in model.linears.values() if _attends(linear)
    }
    for layer, module in sorted(modules, key=str):
        names = (f"{module}.k_proj.k_scale", f"{module}.v_proj.v_scale")
        scales = tuple(TensorSpec(name, "F32", ()) for name in names if name not in model.plain)
        if scales:
            yield Job(f"{module}.kv_scales", "attention", layer, ENCODE, (), (), scales)


def _attends(linear: StoredLinear) -> bool:
    return linear.role == "attention"


def _shares_scale(format: str) -> bool:
    return any(part.fixed is not None and part.dtype == "F32" for part in FORMATS[format].tensors)


def outputs(linear: StoredLinear, action: str, recipe: Recipe) -> list[TensorSpec]:
    """Return the tensors of a linear after its fate. Input scales belong to the format that goes; a bias stays."""
    parts = linear.parts.items()
    kept = [
        TensorSpec(f"{linear.module}.{suffix}", info.dtype, info.shape)
        for suffix, info in parts
        if action == KEEP or suffix == BIAS
    ]
    if action == KEEP:
        return kept
    format, calibrated = "bf16", False
    if action == ENCODE:
        assert recipe.quantize is not None
        format, calibrated = recipe.quantize.format, recipe.quantize.activations == "calibrated"
        _refuse_part_of_a_block(linear, format)
    made = _parts(format, calibrated, linear.shape)
    return kept + [TensorSpec(f"{linear.module}.{suffix}", dtype, shape) for suffix, dtype, shape in made]


@cache  # a model has few shapes, and tens of thousands of linears
def _parts(format: str, calibrated: bool, shape: tuple[int, int]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """Return suffix, dtype and shape of each tensor that a format has, with the calibrated input scale last."""
    found = [(part.suffix, part.dtype, part.shape(*shape)) for part in FORMATS[format].tensors]
    if calibrated:
        suffix, scale_shape = CALIBRATED_INPUTS[format]
        found.append((suffix, "F32", scale_shape))
    return tuple(found)


def _refuse_part_of_a_block(linear: StoredLinear, format: str) -> None:
    row = FORMATS[format]
    if row.block and linear.shape[1] % row.block:
        what = f"K = {linear.shape[1]} is not a multiple of {row.name}'s block of {row.block}"
        raise RecipeError(what, where=linear.module, fix=f"keep {linear.role} in the recipe")
