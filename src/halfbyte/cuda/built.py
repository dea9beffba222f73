"""Which recipes the pass on a GPU can carry out. Light: `plan` asks it too, on machines without one."""

from __future__ import annotations

from halfbyte.errors import RecipeError
from halfbyte.recipe.decisions import COMPENSATED, Recipe


def refuse_unbuilt(recipe: Recipe, *, measures: bool) -> None:
    """Refuse what only the CPU can do so far; `measures`: whether activations are measured, not given."""
    quantize = recipe.quantize
    if quantize is None:
        return
    if quantize.scales == COMPENSATED:
        fix = "use --device cpu for this recipe"
        raise RecipeError("compensated scales are not built for the GPU yet", where=recipe.name, fix=fix)
    rule = quantize.input_scale
    if measures and rule is not None and rule.backstop == "all_experts" and rule.min_tokens:
        fix = "use --device cpu for this recipe, or another backstop"
        raise RecipeError("the backstop all_experts is not built for the GPU yet", where=recipe.name, fix=fix)
