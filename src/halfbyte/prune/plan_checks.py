"""A plan from a file: each thing that can be wrong with one has one clear error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn, cast, get_args

from halfbyte.errors import UsageError
from halfbyte.prune.plan_file import CHOSEN_ON, KIND, VERSION, LayerChoice, PrunePlan, is_score
from halfbyte.prune.ranking import SUPER, SUPER_DROPPED, UNOBSERVED
from halfbyte.prune.restore import RESTORED
from halfbyte.prune.router import RouterShape, check_count
from halfbyte.recipe.decisions import Prune, PruneMethod, PruneSelect, PruneStatistics

_AGAIN = "make the plan again: halfbyte prune"
_KEYS = ("kind", "version", "router", "rule", "non_uniform", "edited", "source", "statistics", "coverage")
_LAYER_KEYS = ("count", "kept", "scores", "reasons")
_BLOCKS = ("source", "statistics", "coverage")


def checked_plan(found: Any, *, layers_expected: Collection[int] | None, where: str) -> PrunePlan:
    """Return the plan, or refuse the first thing that cannot be."""
    if not isinstance(found, dict) or found.get("kind") != KIND:
        what = "this is no prune plan of halfbyte's"
        raise UsageError(what, where=where, fix="give a prune-plan.json, or convert a keep list to one")
    whole = cast("dict[str, Any]", found)
    if whole.get("version") != VERSION:
        what = f"this plan is of version {whole.get('version')}, and version {VERSION} is read"
        raise UsageError(what, where=where, fix=_AGAIN)
    _check_keys(whole, (*_KEYS, "kept_sha256", "layers"), where)
    router = _router(whole["router"], f"{where}: router")
    for key in _BLOCKS:
        _block(whole[key], f"{where}: {key}")
    _block(whole["source"].get(CHOSEN_ON, {}), f"{where}: source: {CHOSEN_ON}")
    for key in ("non_uniform", "edited"):
        if not isinstance(whole[key], bool):
            _refuse(f"'{key}' is neither true nor false", where, "write true or false")
    layers = _layers(_block(whole["layers"], f"{where}: layers"), router, where)
    check_layers(layers, router, non_uniform=whole["non_uniform"], layers_expected=layers_expected, where=where)
    rule = None if whole["rule"] is None else _rule(whole["rule"], f"{where}: rule")
    blocks: dict[str, Any] = {key: whole[key] for key in _BLOCKS}
    plan = PrunePlan(router=router, layers=layers, rule=rule, non_uniform=whole["non_uniform"], **blocks)
    if whole["kept_sha256"] != plan.kept_sha256():
        return replace(plan, edited=True, coverage={})  # which was of others; statistics can say it anew
    return replace(plan, edited=whole["edited"])


def check_kept(layer: int, kept: Sequence[Any], router: RouterShape, where: str) -> tuple[int, ...]:
    """Return the experts that stay in a layer: numbers that the source has, each once, ascending, enough of them."""
    where = f"{where}: layer {layer}"
    for expert in kept:
        if not isinstance(expert, int) or isinstance(expert, bool):
            _refuse(f"{expert!r} is not the number of an expert", where, "write whole numbers")
        if not 0 <= expert < router.experts:
            _refuse(f"there is no expert {expert}", where, f"the experts are 0 to {router.experts - 1}")
    double = next((expert for expert in kept if kept.count(expert) > 1), None)
    if double is not None:
        _refuse(f"expert {double} is there twice", where, "name each expert once")
    if list(kept) != sorted(kept):
        _refuse("the experts are not in ascending order", where, "sort them: the kept ones are renumbered in order")
    check_count(len(kept), router, where=where)
    groups = [sum(expert // router.per_group == group for expert in kept) for group in range(router.n_group)]
    if min(groups) != max(groups):
        _refuse(f"the groups keep {', '.join(map(str, groups))} experts", where, "keep as many of each group")
    return tuple(kept)


def check_layers(
    layers: Mapping[int, LayerChoice],
    router: RouterShape,
    *,
    non_uniform: bool,
    layers_expected: Collection[int] | None,
    where: str,
) -> None:
    """Refuse layers that are missing or not in the checkpoint, and different counts that nobody asked for."""
    if not layers:
        _refuse("the plan has no layers", where, _AGAIN)
    if layers_expected is not None:
        missing = sorted(set(layers_expected) - layers.keys())
        unknown = sorted(layers.keys() - set(layers_expected))
        if missing:
            _refuse(f"the plan says nothing of layer {missing[0]}{_more(missing)}", where, _AGAIN)
        if unknown:
            _refuse(f"the checkpoint has no routed experts in layer {unknown[0]}{_more(unknown)}", where, _AGAIN)
    counts = {layer: len(choice.kept) for layer, choice in sorted(layers.items())}
    usual = next(iter(counts.values()))
    other = next((layer for layer, count in counts.items() if count != usual), None)
    if other is not None and not non_uniform:
        what = f"layer {next(iter(counts))} keeps {usual} experts and layer {other} keeps {counts[other]}"
        _refuse(what, where, "keep as many in each layer, or set non_uniform to true: then stock vLLM cannot load it")


def _more(layers: Sequence[int]) -> str:
    return f" and {len(layers) - 1} more" if len(layers) > 1 else ""


def _layers(found: Mapping[str, Any], router: RouterShape, where: str) -> dict[int, LayerChoice]:
    layers: dict[int, LayerChoice] = {}
    for name, choice in found.items():
        if not name.isdecimal() or str(int(name)) != name:
            _refuse(f"'{name}' is not the number of a layer", f"{where}: layers", "write the layer's number in quotes")
        layers[int(name)] = _layer(int(name), _block(choice, f"{where}: layer {name}"), router, where)
    return dict(sorted(layers.items()))


def _layer(layer: int, found: Mapping[str, Any], router: RouterShape, where: str) -> LayerChoice:
    here = f"{where}: layer {layer}"
    _check_keys(found, _LAYER_KEYS, here)
    kept = check_kept(layer, _list(found["kept"], here, "kept"), router, where)
    if found["count"] != len(kept) or isinstance(found["count"], bool):
        _refuse(f"'count' is {found['count']!r}, but {len(kept)} experts are kept", here, "make them agree")
    scores = _list(found["scores"], here, "scores")
    if scores and len(scores) != router.experts:
        _refuse(f"there are {len(scores)} scores of {router.experts} experts", here, "give all of them, or none")
    bad = next((number for number, score in enumerate(scores) if not is_score(score)), None)
    if bad is not None:
        _refuse(f"{scores[bad]!r} is not the score of expert {bad}", here, "write a number from 0, or null")
    reasons: dict[int, str] = {}
    for name, reason in _block(found["reasons"], f"{here}: reasons").items():
        if not name.isdecimal() or int(name) >= router.experts:
            _refuse(f"there is no expert '{name}'", f"{here}: reasons", f"the experts are 0 to {router.experts - 1}")
        if not isinstance(reason, str) or not reason:
            _refuse(f"the reason of expert {name} is no text", f"{here}: reasons", "write why, in words")
        true = _true_reason(reason, stays=int(name) in kept)
        reasons |= {} if true is None else {int(name): true}
    return LayerChoice(kept, tuple(None if score is None else float(score) for score in scores), reasons)


def _true_reason(reason: str, *, stays: bool) -> str | None:
    """Return the reason as it holds for who stays now: an edit may drop an expert that had a reason to stay."""
    if reason in (SUPER, SUPER_DROPPED):
        return SUPER if stays else SUPER_DROPPED
    return None if reason in (UNOBSERVED, RESTORED) and not stays else reason


def _router(found: Any, where: str) -> RouterShape:
    names = [field.name for field in fields(RouterShape)]
    block = _block(found, where)
    _check_keys(block, names, where)
    for name in names:
        if not isinstance(block[name], int) or isinstance(block[name], bool) or block[name] < 1:
            _refuse(f"'{name}' is {block[name]!r}", where, "write a whole number, at least 1")
    return RouterShape(**block)


def _rule(found: Any, where: str) -> Prune:
    block = _block(found, where)
    _check_keys(block, [field.name for field in fields(Prune)], where)
    for key, kind in (("method", PruneMethod), ("statistics", PruneStatistics), ("select", PruneSelect)):
        if block[key] not in get_args(kind):
            _refuse(f"{block[key]!r} is not a value of '{key}'", where, f"use {', '.join(get_args(kind))}")
    blend = block["blend"]
    weighs = blend is None or all(is_score(weight) and weight is not None for weight in _block(blend, where).values())
    drop, keep, tokens = block["drop"], block["keep"], block["min_tokens"]
    right = {
        "keep": keep is None or _whole(keep, 1),
        "drop": drop is None or (isinstance(drop, float) and math.isfinite(drop) and 0 < drop < 1),
        "blend": weighs,
        "protect": isinstance(block["protect"], bool),
        "min_tokens": _whole(tokens, 0),
    }
    wrong = next((key for key, fine in right.items() if not fine), None)
    if wrong is not None or (keep is None) == (drop is None):
        key = wrong or "keep"
        _refuse(f"{block[key]!r} cannot be '{key}' of a rule", where, "see `prune` in the recipes, or remove the edit")
    return Prune.of(block)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_keys(found: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    missing = next((key for key in keys if key not in found), None)
    if missing is not None:
        _refuse(f"'{missing}' is missing", where, _AGAIN)
    unknown = next((key for key in found if key not in keys), None)
    if unknown is not None:
        _refuse(f"nobody reads '{unknown}'", where, f"remove it; the keys here are {', '.join(keys)}")


def _block(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        _refuse("there is no block of keys here", where, _AGAIN)
    return cast("dict[str, Any]", found)


def _list(found: Any, where: str, name: str) -> list[Any]:
    if not isinstance(found, list):
        _refuse(f"'{name}' is not a list", where, "write [0, 1, ...]")
    return cast("list[Any]", found)


def _refuse(what: str, where: str, fix: str) -> NoReturn:
    raise UsageError(what, where=where, fix=fix)
