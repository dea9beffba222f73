"""The `halfbyte recipes` commands."""

from __future__ import annotations

from halfbyte.cli.command import command
from halfbyte.cli.usage import Group
from halfbyte.options.inspect import NoOptions, RecipeShowOptions
from halfbyte.ui.console import Column, Output


@command("list", NoOptions, example="halfbyte recipes list")
def list_command(out: Output, options: NoOptions) -> None:
    """List the recipes, one per line."""
    from halfbyte.recipe.load import load_recipe, recipe_names

    rows = [{"name": name, "description": load_recipe(name).description} for name in recipe_names()]
    out.table(rows, [Column("name", "recipe"), Column("description", "description")])
    out.hint(f"halfbyte recipes show {rows[0]['name'] if rows else 'FILE'}")


@command("show", RecipeShowOptions, example="halfbyte recipes show kimi-k2.6-nvfp4-nvidia > my-recipe.yaml")
def show_command(out: Output, options: RecipeShowOptions) -> None:
    """Print the recipe NAME, a name or a file. With --json, print the parsed recipe."""
    from halfbyte.recipe.load import load_recipe, recipe_text

    parsed = load_recipe(options.name).as_dict()  # first: an invalid recipe is not printed
    out.text(recipe_text(options.name), parsed)
    out.hint(f"halfbyte recipes show {options.name} > my-recipe.yaml, then edit the file")


recipes_group = Group(
    "recipes",
    help="List and show the recipes that come with halfbyte.",
    example="halfbyte recipes show kimi-k2.6-nvfp4-nvidia",
    commands=[list_command, show_command],
)
