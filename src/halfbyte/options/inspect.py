"""Options of the commands that only look: doctor, formats, recipes, inspect, plan, status."""

from dataclasses import dataclass
from pathlib import Path

from halfbyte.options.declare import argument, group, option
from halfbyte.options.shared import Placement, RecipeChanges, cache_dir_option, example_option, recipe_option


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """A command without options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeShowOptions:
    """Options of `halfbyte recipes show`."""

    name: str = argument("NAME", kind="recipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of `halfbyte doctor`."""

    folder: Path = option("--dir", default=Path(), kind="existing folder", help="Measure the disk of this folder.")
    no_disk: bool = option("--no-disk", default=False, help="Do not measure the disk.")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectOptions:
    """Options of `halfbyte inspect`."""

    source: str | None = argument("[SRC]", required=False)
    example: str | None = example_option()
    tensors: str | None = option("--tensors", metavar="GLOB", help="List the tensors whose names match, one per line.")
    cache_dir: Path | None = cache_dir_option()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of `halfbyte plan`."""

    source: str | None = argument("[SRC]", required=False)
    recipe: str = recipe_option(required=True)
    changes: RecipeChanges = group(RecipeChanges)
    example: str | None = example_option()
    file: Path | None = option("-o", "--out", kind="file", help="Write the plan as JSON, for `quantize --plan`.")
    diff: Path | None = option("--diff", help="Show the differences from a plan.json.")
    fit: str | None = option(
        "--fit",
        metavar="NxGPU",
        kind="gpus",
        help="Check that the output fits these GPUs, e.g. 8xB200. Exit code 1 if not.",
    )
    to: Path | None = option("--to", help="Also measure the write speed of this folder.")
    no_measure: bool = option(
        "--no-measure", default=False, help="Do not measure this machine (up to 2 s) or estimate the time."
    )
    cache_dir: Path | None = cache_dir_option()
    placement: Placement = group(Placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """Options of `halfbyte status`."""

    out_folder: Path = argument("OUT")
    watch: bool = option("--watch", default=False, help="Refresh every two seconds until the run is complete.")
