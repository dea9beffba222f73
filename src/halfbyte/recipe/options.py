"""The options that say what is to be done: a recipe with changes and other data, or a plan, where all is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbyte.errors import UsageError

if TYPE_CHECKING:
    from halfbyte.plan.file import PlanFile
    from halfbyte.recipe.decisions import Recipe

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
_DECIDED = {"overrides": "--set", "data": "--data", "samples": "--samples"}  # what a plan has decided already


def _recipe(*, required: bool) -> Decorator:
    return click.option(
        "-r", "--recipe", required=required, help="A recipe's name or file; see `halfbyte recipes list`."
    )


_PLAN = click.option("--plan", "plan_file", metavar="FILE", type=click.Path(path_type=Path),
                     help="Instead of -r: a file of `halfbyte plan -o`, with its recipe.")  # fmt: skip
_CHANGES = (
    click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe."),
    click.option("--layers", type=click.IntRange(1), help="Only the first layers: a small checkpoint that loads."),
    click.option("--data", multiple=True, metavar="DOMAIN=FILE[:COLUMNS]",
                 help="Calibrate with this .jsonl, .parquet or .txt instead of the recipe's data sets."),
    click.option("--samples", type=click.IntRange(1), help="How many samples of --data, evenly of each file."),
)  # fmt: skip


def recipe_options(command: Command) -> Command:
    """Add which recipe, with which changes and which data, on how many layers."""
    return _with((_recipe(required=True), *_CHANGES), command)


def recipe_or_plan_options(command: Command) -> Command:
    """Add the same, or a plan instead."""
    return _with((_recipe(required=False), _PLAN, *_CHANGES), command)


def _with(options: Sequence[Decorator], command: Command) -> Command:
    for option in reversed(options):  # the first that is listed is the last to be put on
        command = option(command)
    return command


def chosen_recipe(choice: Mapping[str, Any]) -> Recipe:
    """Return the recipe that the options name, with their changes and their data."""
    from halfbyte.calibrate.named_files import with_data
    from halfbyte.recipe.load import load_recipe

    return with_data(load_recipe(choice["recipe"], choice["overrides"]), choice["data"], choice["samples"])


def refuse_data_beside_statistics(choice: Mapping[str, Any]) -> None:
    """Statistics were measured on data of their own: other data would be read by nobody."""
    for option in ("--data", "--samples"):
        if choice["stats"] is not None and choice[option.removeprefix("--")]:
            fix = f"leave {option} out, or measure on it: halfbyte calibrate SRC -r RECIPE {option} ... -o STATS"
            what = f"{option} cannot go with --stats, which were measured on their own data"
            raise UsageError(what, where=option, fix=fix)


def chosen_plan(choice: Mapping[str, Any]) -> PlanFile | None:
    """Return the plan that the options name, None where they name a recipe; exactly one of the two is given."""
    if (choice["plan_file"] is None) == (choice["recipe"] is None):
        if choice["recipe"] is None:
            what, fix = "there is neither a recipe nor a plan", "give -r RECIPE, or --plan FILE"
        else:
            what, fix = "-r and --plan are both given", "leave one of them out: a plan has its recipe in it"
        raise UsageError(what, where="halfbyte quantize", fix=fix)
    if choice["plan_file"] is None:
        return None
    for key, option in _DECIDED.items():
        if choice[key]:
            fix = f"leave it out, or make another plan: halfbyte plan SRC -r RECIPE {option} ... -o FILE"
            raise UsageError(f"{option} cannot go with --plan, which has decided it", where=option, fix=fix)
    from halfbyte.plan.file import read_plan_file

    return read_plan_file(choice["plan_file"])
