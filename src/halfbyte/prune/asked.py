"""From the options of `halfbyte prune` to a recipe that keeps every role, and to the plan that they name.

A pruning is a recipe like any other, so that the engine, its journal and the audit know nothing of this command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from halfbyte.calibrate.named_files import with_data
from halfbyte.errors import RecipeError, UsageError
from halfbyte.models.model import Model
from halfbyte.plan.pruned import moe_layers, router_shape
from halfbyte.prune.keep_list import plan_of_keep_list
from halfbyte.prune.plan_file import PrunePlan, read_json
from halfbyte.prune.restore import restore
from halfbyte.recipe import schema as recipe_schema
from halfbyte.recipe.decisions import MOST_WEIGHT, Recipe, Role
from halfbyte.recipe.errors import explain
from halfbyte.recipe.load import load_recipe
from halfbyte.recipe.strict_yaml import parse_yaml
from halfbyte.source.checkpoint import Checkpoint

_WHERE = "halfbyte prune"
_ROWS_OF = "kimi-k2.6-nvfp4-reap192"  # how rows are made where the data is given here
_DECIDED = ("keep", "drop", "spread", "method", "select", "blend", "protect", "min_tokens", "data", "samples", "length")
_GOALS = ("plan_only", "keep_list")
_MEASURE = "measure first: halfbyte calibrate SRC -r RECIPE --data ... -o STATS, then give --stats STATS"
_OF_DATA = ("samples", "length")


def refuse_contradictions(choice: Mapping[str, Any], out_folder: Path | None) -> None:
    """Exactly one thing says which experts stay, and exactly one says where the answer goes."""
    given = [key for key in ("plan_file", "stats", "data") if choice[key]]
    if not given:
        fix = "give --stats (of halfbyte calibrate), --data to measure in the same run, or --plan"
        raise UsageError("nothing says which experts stay", where=_WHERE, fix=fix)
    if choice["plan_file"]:
        for key in _DECIDED:
            if choice[key] not in (None, ()):
                option = f"--{key.replace('_', '-')}"
                what = f"{option} cannot go with --plan, which has decided it"
                raise UsageError(what, where=option, fix="leave one of them out")
    elif choice["restore"] is not None:
        what, fix = "--restore adds to a plan, and none is given", "give --plan prune-plan.json"
        raise UsageError(what, where="--restore", fix=fix)
    elif len(given) > 1:
        fix = "leave one of them out: statistics were measured on their own data"
        raise UsageError("--stats and --data are both given", where=_WHERE, fix=fix)
    elif (choice["keep"] is None) == (choice["drop"] is None):
        both = choice["keep"] is not None
        what = "--keep and --drop are both given" if both else "it is not said how many experts stay"
        raise UsageError(what, where=_WHERE, fix="give one of --keep 192 and --drop 25%")
    elif choice["spread"] and choice["data"]:
        what = "--spread compares layers, and --data measures them one by one"
        raise UsageError(what, where="--spread", fix=_MEASURE)
    _refuse_wrong_goal(choice, out_folder)


def _refuse_wrong_goal(choice: Mapping[str, Any], out_folder: Path | None) -> None:
    if choice["prompts"] is not None and choice["no_loops"]:
        raise UsageError("--loops and --no-loops are both given", where=_WHERE, fix="leave one of them out")
    for key in _OF_DATA:
        if choice[key] is not None and not choice["data"]:
            raise UsageError(f"--{key} is about --data, and none is given", where=f"--{key}", fix="leave it out")
    goals = [f"--{key.replace('_', '-')}" for key in _GOALS if choice[key] is not None]
    if out_folder is None and not goals:
        fix = "give OUT, or --plan-only FILE"
        raise UsageError("it is not said where the pruned checkpoint goes", where=_WHERE, fix=fix)
    if out_folder is not None and choice["plan_only"] is not None:
        what = "--plan-only writes no checkpoint, but OUT is given"
        raise UsageError(what, where=_WHERE, fix="leave one of them out")
    if choice["form"] is not None and choice["keep_list"] is None:
        raise UsageError("--form is about --keep-list, and none is given", where="--form", fix="leave it out")
    for key in _GOALS:
        if choice[key] is not None and not choice[key].absolute().parent.is_dir():
            where = str(choice[key].parent)
            raise UsageError("there is no such folder", where=where, fix="make it, or give another")
    if out_folder is None and choice["data"]:
        raise UsageError(f"{goals[0]} needs statistics that are there", where=goals[0], fix=_MEASURE)


def asked_recipe(choice: Mapping[str, Any]) -> Recipe:
    """Return the recipe that the options describe."""
    rule = {key: choice[key] for key in ("keep", "select", "protect", "min_tokens") if choice[key] is not None}
    rule |= {"method": choice["method"] or "reap", "statistics": "calibrate" if choice["data"] else "given"}
    if choice["drop"] is not None:
        rule["drop"] = parse_share(choice["drop"])
    if choice["blend"] is not None:
        rule["blend"] = parse_blend(choice["blend"])
    recipe = _recipe(rule, choice["shards"], calibrates=bool(choice["data"]))
    if not choice["data"]:
        return recipe
    recipe = with_data(recipe, choice["data"], choice["samples"])
    assert recipe.calibrate is not None
    length = choice["length"] or recipe.calibrate.sequence_length
    return replace(recipe, calibrate=replace(recipe.calibrate, sequence_length=length))


def recipe_of_plan(plan: PrunePlan, shards: str) -> Recipe:
    """Return the recipe that applies a plan: its rule, with the number of experts that it keeps now."""
    rule = {} if plan.rule is None else {key: value for key, value in plan.rule.as_dict().items() if value is not None}
    rule |= {"method": rule.get("method", "reap"), "statistics": "given", "keep": max(plan.counts().values())}
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
        usual = load_recipe(_ROWS_OF).calibrate
        assert usual is not None
        data["calibrate"] = {key: value for key, value in usual.as_dict().items() if key != "datasets"}
        data["calibrate"]["datasets"] = [
            {key: value for key, value in dataset.items() if value is not None}
            for dataset in usual.as_dict()["datasets"]
        ]
        blend = data["prune"].pop("blend", None)  # its domains are those of the files that replace these
    else:
        blend = None
    document = parse_yaml(json.dumps(data), _WHERE)
    try:
        recipe = recipe_schema.Recipe.model_validate(document.data).decided()
    except ValidationError as error:
        told = explain(error, document, recipe_schema.Recipe)
        raise RecipeError(told.what, where=_WHERE, fix=told.fix) from None
    if blend is not None and recipe.prune is not None:
        return replace(recipe, prune=replace(recipe.prune, blend=blend))
    return recipe


def parse_share(text: str) -> float:
    """Return a share that is written as 25% or as 0.25."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise UsageError(f"'{text}' is no share of the experts", where="--drop", fix="write 25%, or 0.25")
    return share


def parse_blend(text: str) -> dict[str, float]:
    """Return the weights of domains, written as code=2,prose=1."""
    found: dict[str, float] = {}
    for pair in text.split(","):
        domain, equals, weight = pair.partition("=")
        try:
            value = float(weight)
        except ValueError:
            equals, value = "", 0.0
        if not (domain and equals):
            raise UsageError(f"'{pair}' is not a domain and its weight", where="--blend", fix="write code=2,prose=1")
        if not 0 <= value <= MOST_WEIGHT:  # nor nan
            fix = f"write a number from 0 to {MOST_WEIGHT}"
            raise UsageError(f"'{weight}' cannot be the weight of '{domain}'", where="--blend", fix=fix)
        if domain in found:
            raise UsageError(f"'{domain}' is there twice", where="--blend", fix="give each domain one weight")
        found[domain] = value
    return found


def read_plan(path: Path, checkpoint: Checkpoint, model: Model, layers: int | None) -> PrunePlan:
    """Read a prune plan, or a keep list as others publish it."""
    found = read_json(path)
    if isinstance(found, dict) and "kind" in found:  # a file of another kind is no bare list, whatever else it has
        return PrunePlan.of(found, where=str(path))
    router = router_shape(model, checkpoint.config)
    return plan_of_keep_list(found, router, moe_layers(model, layers), where=str(path))


def asked_plan(choice: Mapping[str, Any], checkpoint: Checkpoint, model: Model) -> PrunePlan:
    """Return the plan that is to be applied, with as many of the best dropped experts as are wanted back."""
    plan = read_plan(choice["plan_file"], checkpoint, model, choice["layers"])
    return plan if choice["restore"] is None else restore(plan, choice["restore"])
