"""Check that the GPU backend supports a recipe. Does not import PyTorch, because `plan` uses it."""

from __future__ import annotations

from halfbyte.errors import RecipeError
from halfbyte.recipe.decisions import COMPENSATED, Recipe


def refuse_unbuilt(recipe: Recipe, *, measures: bool) -> None:
    """Raise for recipes that only the CPU supports; `measures`: the run calibrates instead of reading statistics."""
    quantize = recipe.quantize
    if quantize is None:
        return
    if quantize.scales == COMPENSATED:
        fix = "use --device cpu for this recipe"
        raise RecipeError("compensated scales are not supported on the GPU yet", where=recipe.name, fix=fix)
    rule = quantize.input_scale
    if measures and rule is not None and rule.backstop == "all_experts" and rule.min_tokens:
        fix = "use --device cpu for this recipe, or another backstop"
        raise RecipeError("the backstop all_experts is not supported on the GPU yet", where=recipe.name, fix=fix)
