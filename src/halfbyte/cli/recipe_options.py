"""The options that select a recipe, with overrides and data, or a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.cli.named_values import RECIPE
from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.plan.manifest import PlanFile
    from halfbyte.recipe.decisions import Recipe

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
_DECIDED = {"overrides": "--set", "data": "--data", "samples": "--samples"}  # options that a plan fixes


def _recipe(*, required: bool) -> Decorator:
    return click.option(
        "-r",
        "--recipe",
        required=required,
        type=RECIPE,
        metavar="NAME|FILE",
        help="Recipe name or file; see `halfbyte recipes list`.",
    )


_PLAN = click.option("--plan", "plan_file", metavar="FILE", type=click.Path(path_type=Path),
                     help="Instead of -r: a plan from `halfbyte plan -o`, which contains its recipe.")  # fmt: skip
_CHANGES = (
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of the recipe."),
    click.option("--layers", type=click.IntRange(1), help="Use only the first N layers, for a small checkpoint."),
    click.option("--data", multiple=True, metavar="DOMAIN=FILE[:COLUMNS]",
                 help="Calibrate on this .jsonl, .parquet or .txt instead of the recipe's data sets."),
    click.option("--samples", type=click.IntRange(1), help="Number of samples, taken evenly from the --data files."),
)  # fmt: skip


def recipe_options(command: Command) -> Command:
    """Add -r, --set, --layers, --data and --samples."""
    return _with((_recipe(required=True), *_CHANGES), command)


def recipe_or_plan_options(command: Command) -> Command:
    """Add the same options, and --plan as an alternative to -r."""
    return _with((_recipe(required=False), _PLAN, *_CHANGES), command)


def _with(options: Sequence[Decorator], command: Command) -> Command:
    for option in reversed(options):  # the last decorator applied is listed first
        command = option(command)
    return command


def chosen_recipe(choice: Mapping[str, Any]) -> Recipe:
    """Return the recipe that the options name, with overrides and data applied."""
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.recipe.load import load_recipe

    return with_data(load_recipe(choice["recipe"], choice["overrides"]), choice["data"], choice["samples"])


def refuse_data_beside_statistics(choice: Mapping[str, Any]) -> None:
    """Refuse --data and --samples with --stats, which would ignore them."""
    for option in ("--data", "--samples"):
        if choice["stats"] is not None and choice[option.removeprefix("--")]:
            fix = f"omit {option}, or calibrate with it: halfbyte calibrate SRC -r RECIPE {option} ... -o STATS"
            what = f"{option} cannot be combined with --stats, which were measured on their own data"
            raise UsageError(what, where=option, fix=fix)


def chosen_plan(choice: Mapping[str, Any]) -> PlanFile | None:
    """Return the plan that the options name, or None for a recipe. Exactly one of the two is required."""
    if (choice["plan_file"] is None) == (choice["recipe"] is None):
        if choice["recipe"] is None:
            what, fix = "no recipe or plan specified", "pass -r RECIPE or --plan FILE"
        else:
            what, fix = "-r and --plan cannot be combined", "omit one: a plan contains its recipe"
        raise UsageError(what, where="halfbyte quantize", fix=fix)
    if choice["plan_file"] is None:
        return None
    for key, option in _DECIDED.items():
        if choice[key]:
            fix = f"omit it, or create a new plan: halfbyte plan SRC -r RECIPE {option} ... -o FILE"
            raise UsageError(f"{option} cannot be combined with --plan, which fixes it", where=option, fix=fix)
    from halfbyte.plan.manifest import read_plan_file

    return read_plan_file(choice["plan_file"])
