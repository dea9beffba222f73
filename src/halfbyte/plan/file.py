"""A plan that was made before, on another machine perhaps: its recipe, and what the source must still be.

The recipe was checked when the plan was made. Here it is only compared with its own fingerprint, which needs none of
the libraries that read recipes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan, different_parts
from halfbyte.recipe.decisions import Recipe
from halfbyte.source.foreign import read_json

_AGAIN = "make it again: halfbyte plan SRC -r RECIPE -o FILE"


@dataclass(frozen=True, slots=True)
class PlanFile:
    """What a plan.json decides."""

    path: Path
    recipe: Recipe
    layers: int | None
    parts: Mapping[str, str]

    def refuse_other(self, made: Plan) -> None:
        """Refuse a plan that is made now and is not this one; say which part differs."""
        different = different_parts(self.parts, made)
        if different:
            parts = f"{', '.join(different)} differ{'s' if len(different) == 1 else ''}"
            fix = f"give the source, layers and halfbyte that it was made with, or {_AGAIN}"
            raise UsageError(f"this is a plan for something else: {parts}", where=str(self.path), fix=fix)


def read_plan_file(path: Path) -> PlanFile:
    """Read what `halfbyte plan -o` wrote, or the plan.json of an output."""
    try:
        found: Any = read_json(path)
        recipe = Recipe.of(found["recipe"])
        parts = {str(name): str(part) for name, part in found["parts"].items()}
        layers = None if parts["layers"] == "all" else int(parts["layers"])
        changed = recipe.fingerprint() != parts["recipe"]
    except OSError as error:
        what = f"the plan cannot be read: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix="check the path") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        what = "this is not a plan of this version of halfbyte, or it is damaged"
        raise UsageError(what, where=str(path), fix=_AGAIN) from None
    if changed:
        what = "the recipe in this plan was changed after the plan was made"
        raise UsageError(what, where=str(path), fix=_AGAIN)
    return PlanFile(path, recipe, layers, parts)
