"""Predict the checkpoint size after each recipe, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from halfbyte.checkpoint.headers import tensor_nbytes
from halfbyte.errors import RecipeError
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import Model
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.rules import KEEP, KV_SCALES_MODELOPT, mixes_formats, outputs, stale_kv_scales
from halfbyte.recipe.decisions import Recipe
from halfbyte.recipe.load import load_recipe, recipe_names


@dataclass(frozen=True, slots=True)
class Gain:
    """A recipe and the bytes and elements of its output; None and a reason in `why_not` if it does not apply.

    Elements are the parameter count that the Hub shows: two FP4 codes in a byte count as one, and a scale as one.
    """

    recipe: str
    nbytes: int | None
    elements: int | None
    why_not: str | None = None
    prunes: bool = False
    header_nbytes: int = 0  # of the shards, estimated


class TensorTotals(NamedTuple):
    """Total size of some tensors."""

    nbytes: int
    elements: int
    tensors: int

    def plus(self, other: TensorTotals) -> TensorTotals:
        """Return the sum of both."""
        return TensorTotals(self.nbytes + other.nbytes, self.elements + other.elements, self.tensors + other.tensors)

    def share(self, times: Fraction) -> TensorTotals:
        """Return a fraction or multiple."""
        return TensorTotals(int(self.nbytes * times), int(self.elements * times), int(self.tensors * times))


Kinds = Sequence[tuple[StoredLinear, int]]  # one linear of each kind, and its count
_TWICE = "prunes, but this is already pruned"
_NOTHING, _F32_SCALAR = TensorTotals(0, 0, 0), TensorTotals(4, 1, 1)


def gains(model: Model, *, pruned: bool = False, header_nbytes: Fraction = Fraction(0)) -> list[Gain]:
    """Return the result of every built-in recipe, smallest first; recipes that prune do not apply if `pruned`.

    `header_nbytes` is the size of the source's headers per tensor. It hardly changes, and laying out the shards of
    every recipe would take seconds.
    """
    kinds = model.kinds()
    plain: dict[str, TensorTotals] = {}
    for place, tensor in model.plain.values():
        plain[place.role] = plain.get(place.role, _NOTHING).plus(_totals([(tensor.dtype, tensor.shape)]))
    recipes = [load_recipe(name) for name in recipe_names()]
    results = [
        Gain(recipe.name, None, None, _TWICE)
        if pruned and recipe.prune
        else _gain(recipe, model, kinds, plain, header_nbytes)
        for recipe in recipes
    ]
    prune = {recipe.name for recipe in recipes if recipe.prune}
    results = [replace(gain, prunes=gain.recipe in prune) for gain in results]
    return sorted(results, key=lambda gain: (gain.nbytes is None, gain.nbytes or 0))


def _totals(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> TensorTotals:
    """Return the totals of tensors given by dtype and shape."""
    specs = list(tensors)
    elements = sum(math.prod(shape) for _, shape in specs)
    return TensorTotals(sum(tensor_nbytes(*tensor) for tensor in specs), elements, len(specs))


def _gain(
    recipe: Recipe, model: Model, kinds: Kinds, plain: Mapping[str, TensorTotals], header_nbytes: Fraction
) -> Gain:
    roles: Mapping[str, str] = {str(role): action for role, action in recipe.roles.items()}
    why_not = _not_pruned(recipe, model) or _why_not(recipe, roles, [linear for linear, _ in kinds], plain)
    if why_not:
        return Gain(recipe.name, None, None, why_not)
    try:
        after = [outputs(linear, roles[linear.role], recipe) for linear, _ in kinds]
    except RecipeError as error:
        return Gain(recipe.name, None, None, error.what)
    kept = _kept_experts(recipe, model)
    total = _kv_scales(recipe, model)
    for (linear, number), specs in zip(kinds, after, strict=True):
        share = kept if linear.role == "routed_experts" else Fraction(1)
        total = total.plus(_totals((spec.dtype, spec.shape) for spec in specs).share(share * number))
    for role, totals in plain.items():
        pruned = totals.share(kept)._replace(tensors=totals.tensors) if role == "router" else totals  # fewer rows
        total = total.plus(pruned)
    return Gain(recipe.name, total.nbytes, total.elements, header_nbytes=int(total.tensors * header_nbytes))


def _not_pruned(recipe: Recipe, model: Model) -> str | None:
    """Return why the recipe cannot prune this model, or None."""
    if recipe.prune is None:
        return None
    if not model.experts:
        return "prunes experts, but there are none"
    count = recipe.prune.count(model.experts)
    if count >= model.experts:
        return f"keeps {count} experts, but there are {model.experts}"
    return f"keeps {count} experts, but tokens need {model.active_experts}" if count < model.active_experts else None


def _why_not(
    recipe: Recipe, roles: Mapping[str, str], linears: Sequence[StoredLinear], plain: Iterable[str]
) -> str | None:
    """Return why a recipe does not apply, or None; config.json can declare only one quantized format."""
    missing = sorted({*(linear.role for linear in linears), *plain} - roles.keys())
    if missing:
        return f"has no action for {', '.join(missing)}"
    mixed = [linear for linear in linears if roles[linear.role] == KEEP and mixes_formats(linear, recipe)]
    return f"would keep {mixed[0].role} in {mixed[0].format}" if mixed else None


def encoded(format: str, shape: tuple[int, int]) -> TensorTotals:
    """Return the size of a linear in a format."""
    return _totals((part.dtype, part.shape(*shape)) for part in FORMATS[format].tensors)


def _kept_experts(recipe: Recipe, model: Model) -> Fraction:
    """Return the fraction of experts to keep."""
    if recipe.prune is None:
        return Fraction(1)
    return Fraction(recipe.prune.count(model.experts), model.experts)


def _kv_scales(recipe: Recipe, model: Model) -> TensorTotals:
    """Return the size of the KV cache scales that a recipe adds, two per layer, minus the stale ones it drops."""
    stale = [model.plain[name][1] for name in stale_kv_scales(model, recipe)]
    dropped = _totals((info.dtype, info.shape) for info in stale).share(Fraction(-1))
    writes = recipe.quantize is not None and recipe.quantize.kv_cache == "fp8"
    present = any(name.endswith(KV_SCALES_MODELOPT[0]) for name in model.plain)
    return dropped.plus(_F32_SCALAR.share(Fraction(2 * model.layers))) if writes and not present else dropped
