"""Load a recipe by name or by path into a frozen `Recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from halfbyte.errors import RecipeError
from halfbyte.recipe import release as recipe_release
from halfbyte.recipe.decisions import Action, Calibrate, Dataset, Prune, Quantize, Recipe, Role
from halfbyte.recipe.errors import apply_overrides, explain, suggest
from halfbyte.recipe.strict_yaml import parse_yaml
from halfbyte.ui.suggest import containing

__all__ = [
    "Action",
    "Calibrate",
    "Dataset",
    "Prune",
    "Quantize",
    "Recipe",
    "Role",
    "load_recipe",
    "load_release",
    "recipe_names",
    "recipe_text",
]

MAX_NBYTES = 100_000  # recipes have a few kB; a shard or index passed by mistake has megabytes


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes."""
    shipped = files("halfbyte").joinpath("recipes").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in shipped if entry.name.endswith(".yaml"))


def recipe_text(name_or_path: str | Path) -> str:
    """Return the text of a shipped recipe or of a recipe file, including comments."""
    return _read(name_or_path)[1]


def _shipped(name: str) -> str:
    known = recipe_names()
    if name not in known:
        fix = _matching(name, known) or suggest(name, known, f"the recipes are {', '.join(known)}")
        raise RecipeError(f"unknown recipe '{name}'", where=name, fix=fix)
    return files("halfbyte").joinpath("recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def _matching(name: str, known: Sequence[str]) -> str:
    """Return `did you mean ...?` for the recipes whose names contain every word of `name`, pruning recipes last."""
    matches = containing(name, known) if name.strip("-") else []
    if len(matches) > 1:
        matches = sorted(matches, key=lambda match: load_recipe(match).prune is not None)
        return f"did you mean one of {', '.join(matches)}?"
    return f"did you mean '{matches[0]}'?" if matches else ""


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by name or path and apply `path.to.key=value` overrides; raise RecipeError if it is invalid."""
    return _written(name_or_path, overrides).decided()


def load_release(name_or_path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return a recipe's `release` block without its omitted keys; None if the recipe has none.

    Its paths are resolved against the recipe file's folder, or the current folder for shipped recipes.
    """
    block = _written(name_or_path, overrides).release
    if block is None:
        return None
    shipped = isinstance(name_or_path, str) and name_or_path in recipe_names()
    folder = Path() if shipped else Path(name_or_path).parent
    return recipe_release.with_paths(block.model_dump(mode="json", exclude_none=True), folder)


def _written(name_or_path: str | Path, overrides: Sequence[str]) -> recipe_release.Recipe:
    file, text = _read(name_or_path)
    schema = recipe_release.Recipe
    document = apply_overrides(parse_yaml(text, file), overrides, schema)
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        raise explain(error, document, schema) from None


def _read(name_or_path: str | Path) -> tuple[str, str]:
    """Return the file name and text of a shipped recipe or a recipe file."""
    path, name = Path(name_or_path), str(name_or_path)
    if isinstance(name_or_path, str):
        if name in recipe_names():
            return f"{name}.yaml", _shipped(name)
        if "/" not in name and path.suffix not in {".yaml", ".yml"} and not _is_file(path):
            return name, _shipped(name)  # raises
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_NBYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else error
        known, listed = recipe_names(), "pass the path of a YAML file, or a name from 'halfbyte recipes list'"
        fix = (_matching(path.stem, known) if name.endswith((".yaml", ".yml")) else "") or suggest(
            path.stem, known, listed
        )
        raise RecipeError(f"cannot read recipe '{name}': {reason}", where=name, fix=fix) from None
    if len(raw) > MAX_NBYTES:
        fix = "pass a recipe, a YAML file of a few kB; checkpoints are passed as SRC"
        raise RecipeError(f"'{path.name}' is larger than {MAX_NBYTES // 1000} kB: not a recipe", where=name, fix=fix)
    try:
        return name, raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        fix = "pass a recipe, a YAML file in UTF-8"
        raise RecipeError(f"'{path.name}' is not text: not a recipe", where=name, fix=fix) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system
        return False
