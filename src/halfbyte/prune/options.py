"""Convert the options of `halfbyte prune` to a recipe that keeps every role, and load the plan they name.

Because pruning is an ordinary recipe, the engine, the journal and the audit need no special case for this command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from halfbyte.calibrate.datasets import with_data
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.errors import RecipeError, UsageError
from halfbyte.families.model import Model
from halfbyte.options.convert import PruneOptions
from halfbyte.options.declare import options_of
from halfbyte.plan.prune_plan import PrunePlan, read_json
from halfbyte.plan.pruned import moe_layers, router_shape
from halfbyte.prune import plan_source
from halfbyte.prune.keep_list import plan_of_keep_list
from halfbyte.prune.selection import restore
from halfbyte.recipe import schema as recipe_schema
from halfbyte.recipe.decisions import MOST_WEIGHT, Recipe, Role
from halfbyte.recipe.errors import explain
from halfbyte.recipe.load import load_recipe
from halfbyte.recipe.strict_yaml import parse_yaml

_WHERE = "halfbyte prune"
_DEFAULT_RECIPE = "kimi-k2.6-nvfp4-reap192"  # the recipe whose sampling settings apply to --data
_BY_PLAN = ("keep", "drop", "spread", "method", "select", "blend", "protect", "min_tokens", "data", "samples", "length")
_MEASURE = "measure first: halfbyte calibrate SRC -r RECIPE --data ... -o STATS, then pass --stats STATS"
_DATA_OPTIONS = ("samples", "length")


def refuse_contradictions(options: PruneOptions) -> None:
    """Raise unless exactly one option selects the kept experts and the outputs are consistent."""
    sources = [source for source in (options.plan, options.stats, options.data) if source]
    if not sources:
        fix = "pass --stats (from halfbyte calibrate), --data to measure in the same run, or --plan"
        raise UsageError("no option selects the experts to keep", where=_WHERE, fix=fix)
    if options.plan:
        for key in _BY_PLAN:
            if getattr(options, key) not in (None, ()):
                option = options_of(PruneOptions)[key].flag
                what = f"{option} cannot be combined with --plan, which already determines it"
                raise UsageError(what, where=option, fix="remove one of them")
    elif options.restore is not None:
        what, fix = "--restore requires --plan", "pass --plan prune-plan.json"
        raise UsageError(what, where="--restore", fix=fix)
    elif len(sources) > 1:
        fix = "remove one of them: statistics were measured on their own data"
        raise UsageError("--stats and --data cannot be combined", where=_WHERE, fix=fix)
    elif (options.keep is None) == (options.drop is None):
        both = options.keep is not None
        what = "--keep and --drop cannot be combined" if both else "the number of experts to keep is not specified"
        raise UsageError(what, where=_WHERE, fix="pass one of --keep 192 and --drop 25%")
    elif options.spread and options.data:
        what = "--spread compares layers, but --data measures them one by one"
        raise UsageError(what, where="--spread", fix=_MEASURE)
    _refuse_bad_outputs(options)


def _refuse_bad_outputs(options: PruneOptions) -> None:
    if options.loops is not None and options.no_loops:
        raise UsageError("--loops and --no-loops cannot be combined", where=_WHERE, fix="remove one of them")
    for key in _DATA_OPTIONS:
        if getattr(options, key) is not None and not options.data:
            raise UsageError(f"--{key} requires --data", where=f"--{key}", fix=f"remove --{key}, or pass --data")
    out_folder, files = options.out_folder, {"--plan-only": options.plan_only, "--keep-list": options.keep_list}
    outputs = {option: path for option, path in files.items() if path is not None}
    if out_folder is None and not outputs:
        fix = "pass OUT or --plan-only FILE"
        raise UsageError("no output is specified", where=_WHERE, fix=fix)
    if out_folder is not None and options.plan_only is not None:
        what = "--plan-only cannot be combined with OUT: it writes no checkpoint"
        raise UsageError(what, where=_WHERE, fix="remove one of them")
    if options.form is not None and options.keep_list is None:
        raise UsageError("--form requires --keep-list", where="--form", fix="remove --form, or pass --keep-list")
    for path in outputs.values():
        if not path.absolute().parent.is_dir():
            where = str(path.parent)
            raise UsageError("the folder does not exist", where=where, fix="create it, or pass another path")
    if out_folder is None and options.data:
        option = next(iter(outputs))
        raise UsageError(f"{option} needs existing statistics", where=option, fix=_MEASURE)


def recipe_from_options(options: PruneOptions) -> Recipe:
    """Build the recipe that the options describe."""
    own = {key: getattr(options, key) for key in ("keep", "select", "protect", "min_tokens")}
    rule = {key: value for key, value in own.items() if value is not None}
    rule |= {"method": options.method or "reap", "statistics": "calibrate" if options.data else "file"}
    if options.drop is not None:
        rule["drop"] = parse_share(options.drop)
    if options.blend is not None:
        rule["blend"] = parse_blend(options.blend)
    recipe = _recipe(rule, options.shards, calibrates=bool(options.data))
    if not options.data:
        return recipe
    recipe = with_data(recipe, options.data, options.samples)
    assert recipe.calibrate is not None
    length = options.length or recipe.calibrate.sequence_length
    return replace(recipe, calibrate=replace(recipe.calibrate, sequence_length=length))


def recipe_of_plan(plan: PrunePlan, shards: str) -> Recipe:
    """Build the recipe that applies a plan: its rule, with the number of experts it keeps now."""
    rule = {} if plan.rule is None else {key: value for key, value in plan.rule.as_dict().items() if value is not None}
    rule |= {"method": rule.get("method", "reap"), "statistics": "file", "keep": max(plan.counts().values())}
    rule.pop("drop", None)
    return _recipe(rule, shards, calibrates=False)


def _recipe(rule: Mapping[str, Any], shards: str, *, calibrates: bool) -> Recipe:
    data: dict[str, Any] = {
        "name": "prune",
        "description": "Routed experts go; what stays is as it is stored.",
        "roles": dict.fromkeys(get_args(Role), "keep"),
        "prune": dict(rule),
        "shards": shards,
    }
    if calibrates:
        default = load_recipe(_DEFAULT_RECIPE).calibrate
        assert default is not None
        data["calibrate"] = {key: value for key, value in default.as_dict().items() if key != "datasets"}
        data["calibrate"]["datasets"] = [
            {key: value for key, value in dataset.items() if value is not None}
            for dataset in default.as_dict()["datasets"]
        ]
        blend = data["prune"].pop("blend", None)  # its domains refer to --data, which replaces these datasets
    else:
        blend = None
    document = parse_yaml(json.dumps(data), _WHERE)
    try:
        recipe = recipe_schema.Recipe.model_validate(document.data).decided()
    except ValidationError as error:
        explained = explain(error, document, recipe_schema.Recipe)
        raise RecipeError(explained.what, where=_WHERE, fix=explained.fix) from None
    if blend is not None and recipe.prune is not None:
        return replace(recipe, prune=replace(recipe.prune, blend=blend))
    return recipe


def parse_share(text: str) -> float:
    """Parse a fraction written as 25% or 0.25."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(f"'{text}' is not a valid fraction", where="--drop", fix="write 25% or 0.25")
    return share


def parse_blend(text: str) -> dict[str, float]:
    """Parse domain weights written as code=2,prose=1."""
    weights: dict[str, float] = {}
    for pair in text.split(","):
        domain, equals, weight = pair.partition("=")
        try:
            value = float(weight)
        except ValueError:
            equals, value = "", 0.0
        if not (domain and equals):
            raise UsageError(f"'{pair}' is not of the form DOMAIN=WEIGHT", where="--blend", fix="write code=2,prose=1")
        if not 0 <= value <= MOST_WEIGHT:  # also rejects nan
            fix = f"write a number from 0 to {MOST_WEIGHT}"
            raise UsageError(f"invalid weight '{weight}' for '{domain}'", where="--blend", fix=fix)
        if domain in weights:
            raise UsageError(f"duplicate domain '{domain}'", where="--blend", fix="give each domain one weight")
        weights[domain] = value
    return weights


def read_plan(path: Path, checkpoint: Checkpoint, model: Model, layers: int | None) -> PrunePlan:
    """Read a prune plan or a published keep list."""
    content = read_json(path)
    if isinstance(content, dict) and "kind" in content:  # a file with a kind is never a keep list
        return PrunePlan.of(content, where=str(path))
    router = router_shape(model, checkpoint.config)
    return plan_of_keep_list(content, router, moe_layers(model, layers), where=str(path))


def plan_from_options(options: PruneOptions, path: Path, checkpoint: Checkpoint, model: Model) -> PrunePlan:
    """Return the plan to apply, with the experts that --restore adds."""
    plan = read_plan(path, checkpoint, model, options.layers)
    return plan if options.restore is None else restore(plan, options.restore)


def plan_and_recipe(
    options: PruneOptions, checkpoint: Checkpoint, model: Model, note: Callable[[str], None] | None = None
) -> tuple[PrunePlan | None, Recipe]:
    """Return the recipe, and the prune plan if --plan or --spread determines it before the run."""
    plan = None
    if options.plan:
        plan = plan_source.applied_to(plan_from_options(options, options.plan, checkpoint, model), checkpoint)
    recipe = recipe_of_plan(plan, options.shards) if plan else recipe_from_options(options)
    if plan is not None and options.stats is not None:
        run_plan = plan_source.base_plan(checkpoint, model, recipe, options.layers)
        plan_source.refuse_other_source(plan, run_plan)
        plan = plan_source.with_statistics(plan, run_plan, options.stats)
    elif options.spread and options.stats is not None:  # always set with --spread
        run_plan = plan_source.base_plan(checkpoint, model, recipe, options.layers)
        plan, budgets = plan_source.spread_plan(run_plan, options.stats)
        if note is not None:
            note(budgets.line())
        recipe = recipe_of_plan(plan, options.shards)
    return plan, recipe
