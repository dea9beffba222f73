"""What each recipe would make of a checkpoint's size, from shapes alone: an answer before any plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from halfbyte.errors import RecipeError
from halfbyte.models.linears import StoredLinear
from halfbyte.models.model import Model
from halfbyte.numerics.formats import FORMATS
from halfbyte.plan.rules import KEEP, mixes_formats, outputs
from halfbyte.recipe.decisions import Recipe
from halfbyte.recipe.load import load_recipe, recipe_names
from halfbyte.source.headers import tensor_nbytes


@dataclass(frozen=True, slots=True)
class Gain:
    """A recipe, and the bytes and elements of all tensors after it; None where it does not apply, and `why_not`.

    Elements are what the Hub shows as parameters: two FP4 codes in a byte are one, and a scale is one too.
    """

    recipe: str
    nbytes: int | None
    elements: int | None
    why_not: str | None = None


class Stock(NamedTuple):
    """Tensors, counted."""

    nbytes: int
    elements: int

    def plus(self, other: Stock) -> Stock:
        """Return both together."""
        return Stock(self.nbytes + other.nbytes, self.elements + other.elements)

    def share(self, times: Fraction) -> Stock:
        """Return a part or a multiple."""
        return Stock(int(self.nbytes * times), int(self.elements * times))


Kinds = Sequence[tuple[StoredLinear, int]]  # one linear of each kind, and how many there are
_TWICE = "prunes, and this is pruned already"
_NOTHING, _F32_SCALAR = Stock(0, 0), Stock(4, 1)


def gains(model: Model, *, pruned: bool = False) -> list[Gain]:
    """Return what every shipped recipe would make of this model, the smallest first; nothing is pruned twice."""
    kinds = model.kinds()
    plain: dict[str, Stock] = {}
    for place, tensor in model.plain.values():
        plain[place.role] = plain.get(place.role, _NOTHING).plus(_stock([(tensor.dtype, tensor.shape)]))
    recipes = [load_recipe(name) for name in recipe_names()]
    found = [
        Gain(recipe.name, None, None, _TWICE) if pruned and recipe.prune else _gain(recipe, model, kinds, plain)
        for recipe in recipes
    ]
    return sorted(found, key=lambda gain: (gain.nbytes is None, gain.nbytes or 0))


def _stock(tensors: Iterable[tuple[str, tuple[int, ...]]]) -> Stock:
    """Count tensors by dtype and shape."""
    found = list(tensors)
    return Stock(sum(tensor_nbytes(*tensor) for tensor in found), sum(math.prod(shape) for _, shape in found))


def _gain(recipe: Recipe, model: Model, kinds: Kinds, plain: Mapping[str, Stock]) -> Gain:
    roles: Mapping[str, str] = {str(role): action for role, action in recipe.roles.items()}
    why_not = _not_pruned(recipe, model) or _why_not(recipe, roles, [linear for linear, _ in kinds], plain)
    if why_not:
        return Gain(recipe.name, None, None, why_not)
    try:
        after = [outputs(linear, roles[linear.role], recipe) for linear, _ in kinds]
    except RecipeError as error:
        return Gain(recipe.name, None, None, error.what)
    kept = _kept_experts(recipe, model)
    total = _new_kv_scales(recipe, model)
    for (linear, number), specs in zip(kinds, after, strict=True):
        share = kept if linear.role == "routed_experts" else Fraction(1)
        total = total.plus(_stock((spec.dtype, spec.shape) for spec in specs).share(share * number))
    for role, stock in plain.items():
        total = total.plus(stock.share(kept if role == "router" else Fraction(1)))
    return Gain(recipe.name, *total)


def _not_pruned(recipe: Recipe, model: Model) -> str | None:
    """Return why a recipe that prunes cannot run on this model."""
    if recipe.prune is None:
        return None
    if not model.experts:
        return "prunes experts, and there are none"
    count = recipe.prune.count(model.experts)
    if count >= model.experts:
        return f"keeps {count} experts, and there are {model.experts}"
    return f"keeps {count} experts, and a token needs {model.active_experts}" if count < model.active_experts else None


def _why_not(
    recipe: Recipe, roles: Mapping[str, str], linears: Sequence[StoredLinear], plain: Iterable[str]
) -> str | None:
    """Return why a recipe does not apply; config.json can name one quantized format, so nothing is kept in another."""
    lacks = sorted({*(linear.role for linear in linears), *plain} - roles.keys())
    if lacks:
        return f"says nothing of {', '.join(lacks)}"
    mixed = [one for one in linears if roles[one.role] == KEEP and mixes_formats(one, recipe)]
    return f"would keep {mixed[0].role} in {mixed[0].format}" if mixed else None


def encoded(format: str, shape: tuple[int, int]) -> Stock:
    """Return the weights of a linear in a format."""
    return _stock((part.dtype, part.shape(*shape)) for part in FORMATS[format].tensors)


def _kept_experts(recipe: Recipe, model: Model) -> Fraction:
    """Return the share of experts that stay."""
    if recipe.prune is None:
        return Fraction(1)
    return Fraction(recipe.prune.count(model.experts), model.experts)


def _new_kv_scales(recipe: Recipe, model: Model) -> Stock:
    """Return the KV cache's scales, two a layer, where a recipe writes them and the source has none."""
    writes = recipe.quantize is not None and recipe.quantize.kv_cache == "fp8"
    there = any(name.endswith(".k_scale") for name in model.plain)
    return _F32_SCALAR.share(Fraction(2 * model.layers)) if writes and not there else _NOTHING
