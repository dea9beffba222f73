"""Turn the shared options into objects: recipe, plan, source, cache, upload and memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from halfbyte.checkpoint.remote.address import (
    DEFAULT_CACHE,
    Cache,
    default_folder,
    is_remote,
    parse_address,
    refuse_hub_id,
)
from halfbyte.errors import UsageError
from halfbyte.machine.device_option import CPU
from halfbyte.ui.units import nbytes

if TYPE_CHECKING:
    from halfbyte.checkpoint.folder import Checkpoint
    from halfbyte.options.check import CompareOptions
    from halfbyte.options.shared import Placement, RecipeChanges, ShardCache, Upload
    from halfbyte.plan.manifest import PlanFile
    from halfbyte.publish.hub.push import Push
    from halfbyte.recipe.decisions import Recipe


def chosen_recipe(recipe: str, changes: RecipeChanges) -> Recipe:
    """Return the recipe with overrides and data applied."""
    from halfbyte.calibrate.datasets import with_data
    from halfbyte.recipe.load import load_recipe

    return with_data(load_recipe(recipe, changes.overrides), changes.data, changes.samples)


def refuse_data_beside_statistics(stats: object, changes: RecipeChanges) -> None:
    """Refuse --data and --samples with --stats, which would ignore them."""
    for option, value in (("--data", changes.data), ("--samples", changes.samples)):
        if stats is not None and value:
            fix = f"omit {option}, or calibrate with it: halfbyte calibrate SRC -r RECIPE {option} ... -o STATS"
            what = f"{option} cannot be combined with --stats, which were measured on their own data"
            raise UsageError(what, where=option, fix=fix)


def chosen_plan(recipe: object, plan: Path | None, changes: RecipeChanges) -> PlanFile | None:
    """Return the plan, or None for a recipe. Exactly one of the two is required."""
    if (plan is None) == (recipe is None):
        if recipe is None:
            what, fix = "no recipe or plan specified", "pass -r RECIPE or --plan FILE"
        else:
            what, fix = "-r and --plan cannot be combined", "omit one: a plan contains its recipe"
        raise UsageError(what, where="halfbyte quantize", fix=fix)
    if plan is None:
        return None
    for option, value in (("--set", changes.overrides), ("--data", changes.data), ("--samples", changes.samples)):
        if value:
            fix = f"omit it, or create a new plan: halfbyte plan SRC -r RECIPE {option} ... -o FILE"
            raise UsageError(f"{option} cannot be combined with --plan, which fixes it", where=option, fix=fix)
    from halfbyte.plan.manifest import read_plan_file

    return read_plan_file(plan)


def refuse_unclear_comparison(options: CompareOptions, recipe: object) -> None:
    """Refuse both or none of OUT and a recipe, options of the other one, and a report inside the source."""
    if (options.out_folder is None) == (recipe is None):
        if recipe is None:
            what, fix = "nothing to compare with", "pass OUT, or -r RECIPE to encode SRC in memory"
        else:
            what, fix = "OUT and -r cannot be combined", "omit one: -r encodes SRC in memory instead of reading OUT"
        raise UsageError(what, where="halfbyte compare", fix=fix)
    if recipe is None:
        for option, value in (("--set", options.overrides), ("--stats", options.stats)):
            if value:
                raise UsageError(f"{option} requires -r", where=option, fix=f"omit {option}, or pass -r instead of OUT")
    elif options.file is not None and options.file.resolve().is_relative_to(options.source.resolve()):
        fix = "write it to another folder: it does not describe the source's files"
        raise UsageError("the report would be written into the source", where=str(options.file), fix=fix)


def chosen_device_memory(placement: Placement) -> int | None:
    """Return the memory limit of each GPU in bytes, or None for all free memory."""
    if placement.memory is None:
        return None
    if placement.device == CPU:
        from halfbyte.engine.backends.support import DEVICE_MEMORY_WITHOUT_GPU

        raise DEVICE_MEMORY_WITHOUT_GPU.as_error()
    return nbytes(placement.memory)


def chosen_push(out: Path, upload: Upload) -> Push | None:
    """Return the uploader of finished shards, or None without --push."""
    if upload.repo is None:
        if upload.evict:
            raise UsageError("--evict requires --push", where="--evict", fix="add --push REPO")
        return None
    from halfbyte.publish.hub.hub import Target, check_name
    from halfbyte.publish.hub.push import Push

    repo = check_name(upload.repo, "--push")
    return Push(out, Target(repo, private=True, message="halfbyte: shards of a run"), evict=upload.evict)


def chosen_cache(cache: ShardCache) -> Cache:
    """Return the cache folder and size for a remote source."""
    return Cache(cache.folder or default_folder(), nbytes(cache.size or DEFAULT_CACHE, "--cache"))


def chosen_source(source: str, run_folder: Path | None, cache: ShardCache, *, verify: bool) -> Path | Checkpoint:
    """Return the source: a folder, or an open remote checkpoint.

    `run_folder` is the folder in which an earlier run recorded the revision. A resumed run uses that revision.
    """
    if not is_remote(source):
        refuse_hub_id(source)
        for option, value in (("--cache", cache.size), ("--cache-dir", cache.folder)):
            if value is not None:
                fix = "omit it, or pass an address like hf://organization/name"
                raise UsageError("a local source needs no cache", where=option, fix=fix)
        return Path(source)
    from halfbyte.checkpoint.remote.mirror import open_remote
    from halfbyte.engine.prefetch import recorded_version

    pin = recorded_version(run_folder, str(parse_address(source))) if run_folder is not None else None
    return open_remote(source, chosen_cache(cache), pin, verify=verify)
