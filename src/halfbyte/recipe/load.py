"""Recipes by name or by file: one whole, commented YAML file each, read strictly into a frozen `Recipe`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from halfbyte.errors import RecipeError
from halfbyte.recipe import release as recipe_release
from halfbyte.recipe.decisions import Action, Calibrate, Dataset, Format, Prune, Quantize, Recipe, Role
from halfbyte.recipe.errors import apply_overrides, explain, suggest
from halfbyte.recipe.strict_yaml import parse_yaml

__all__ = [
    "Action",
    "Calibrate",
    "Dataset",
    "Format",
    "Prune",
    "Quantize",
    "Recipe",
    "Role",
    "load_recipe",
    "load_release",
    "recipe_names",
    "recipe_text",
]

MAX_NBYTES = 100_000  # a recipe has a few kB; a shard or an index given by mistake has megabytes


def recipe_names() -> list[str]:
    """The names of the shipped recipes."""
    shipped = files("halfbyte").joinpath("recipes").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in shipped if entry.name.endswith(".yaml"))


def recipe_text(name_or_path: str | Path) -> str:
    """A recipe as it is written, comments included: a shipped one by its name, else a file."""
    return _read(name_or_path)[1]


def _shipped(name: str) -> str:
    known = recipe_names()
    if name not in known:
        fix = suggest(name, known, f"the recipes are {', '.join(known)}")
        raise RecipeError(f"no recipe is named '{name}'", where=name, fix=fix)
    return files("halfbyte").joinpath("recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of that name or file, with `path.to.key=value` overrides put in; RecipeError if anything is wrong."""
    return _written(name_or_path, overrides).decided()


def load_release(name_or_path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any] | None:
    """What a recipe's `release` block says, without what it leaves out; None where the recipe has none.

    Its paths begin at the recipe's file, those of a shipped recipe at the current folder.
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
    """A shipped recipe by its name, else a file; a name that is neither gets the answer for names."""
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
        fix = suggest(path.stem, recipe_names(), "give the path of a YAML file, or a name from 'halfbyte recipes list'")
        raise RecipeError(f"cannot read recipe '{name}': {reason}", where=name, fix=fix) from None
    if len(raw) > MAX_NBYTES:
        fix = "give a recipe, a YAML file of a few kB; checkpoints are given as SRC"
        raise RecipeError(f"'{path.name}' has more than {MAX_NBYTES // 1000} kB: not a recipe", where=name, fix=fix)
    try:
        return name, raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        fix = "give a recipe, a YAML file in UTF-8"
        raise RecipeError(f"'{path.name}' is not text: not a recipe", where=name, fix=fix) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system
        return False
