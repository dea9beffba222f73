"""Read a plan.json: its recipe, and the fingerprints that the source must match.

The recipe was validated when the plan was created. Here it is only compared with its own fingerprint, which does not
require pydantic or PyYAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import UsageError
from halfbyte.plan.manifest import Plan, different_parts
from halfbyte.recipe.decisions import Recipe

_AGAIN = "recreate the plan: halfbyte plan SRC -r RECIPE -o FILE"


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
