"""The prune plan: the kept experts of each layer and the reasons, as a file that can be read, edited and applied.

    {"kind": "halfbyte prune plan", "version": 1,
     "router": {"experts": 384, "top_k": 8, "n_group": 1, "topk_group": 1},
     "rule": {"method": "reap", ...},                 null if the kept experts come from an imported list
     "non_uniform": false,                            true lets layers keep different numbers
     "edited": false,                                 true if the kept experts were changed by hand
     "source": {...}, "statistics": {...}, "coverage": {...},
     "kept_sha256": "...",
     "layers": {"1": {"count": 192, "kept": [...], "scores": [...], "reasons": {"17": "super expert"}}, ...}}

Layer numbers are those of the checkpoint, expert numbers those before pruning. `scores` has one number for each expert
of the source, null for unobserved ones, or is empty. `reasons` explains experts that are kept or dropped regardless of
their score. After editing `kept`, adjust `count`. The file is validated when it is read; information that an edit has
invalidated is removed: `coverage`, and reasons to keep experts that are now dropped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn, cast, get_args

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.untrusted_files import parsed, plain_bytes, reject_duplicate_keys
from halfbyte.errors import UsageError
from halfbyte.plan.pruned import RouterShape, check_count
from halfbyte.recipe.decisions import Prune, PruneMethod, PruneSelect, PruneStatistics

# Why a layer keeps or drops an expert, as plan files say it.
SUPER = "super expert"
UNOBSERVED = "unobserved"
SUPER_DROPPED = "super expert, dropped by hand"
RESTORED = "restored"
KIND = "halfbyte prune plan"
VERSION = 1
PLAN = "prune-plan.json"
CHOSEN_ON = "chosen_on"  # in `source`: the weights the plan was chosen on, if different

_AGAIN = "create the plan again with halfbyte prune"
_KEYS = ("kind", "version", "router", "rule", "non_uniform", "edited", "source", "statistics", "coverage")
_LAYER_KEYS = ("count", "kept", "scores", "reasons")
_BLOCKS = ("source", "statistics", "coverage")


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """One layer: its kept experts in ascending order, the score of every expert, and reasons other than the score."""

    kept: tuple[int, ...]
    scores: tuple[float | None, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict[int, str])

    def as_dict(self) -> dict[str, Any]:
        """Return the layer's JSON data."""
        reasons = {str(expert): reason for expert, reason in sorted(self.reasons.items())}
        return {"count": len(self.kept), "kept": list(self.kept), "scores": list(self.scores), "reasons": reasons}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    """The plan of all MoE layers. `non_uniform` is set if they keep different numbers."""

    router: RouterShape
    layers: Mapping[int, LayerChoice]
    rule: Prune | None
    source: Mapping[str, Any] = field(default_factory=dict[str, Any])
    statistics: Mapping[str, Any] = field(default_factory=dict[str, Any])
    coverage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    non_uniform: bool = False
    edited: bool = False

    @property
    def experts(self) -> int:
        """How many experts a layer has before pruning."""
        return self.router.experts

    def kept(self) -> dict[int, tuple[int, ...]]:
        """Return the kept experts by layer."""
        return {layer: choice.kept for layer, choice in sorted(self.layers.items())}

    def counts(self) -> dict[int, int]:
        """Return the number of kept experts by layer."""
        return {layer: len(kept) for layer, kept in self.kept().items()}

    def counted(self) -> str:
        """Return the kept and total number of experts per layer, as text."""
        counts = sorted(set(self.counts().values()))
        kept = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return f"{kept} of {self.experts}"

    def kept_sha256(self) -> str:
        """Return a hash of the kept experts."""
        lists = {str(layer): list(kept) for layer, kept in self.kept().items()}
        return hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return {
            "kind": KIND,
            "version": VERSION,
            "router": asdict(self.router),
            "rule": None if self.rule is None else self.rule.as_dict(),
            "non_uniform": self.non_uniform,
            "edited": self.edited,
            "source": dict(self.source),
            "statistics": dict(self.statistics),
            "coverage": dict(self.coverage),
            "kept_sha256": self.kept_sha256(),
            "layers": {str(layer): choice.as_dict() for layer, choice in sorted(self.layers.items())},
        }

    @staticmethod
    def of(content: Any, *, layers_expected: Collection[int] | None = None, where: str = PLAN) -> PrunePlan:
        """Build a plan from JSON data; UsageError on the first problem."""
        return checked_plan(content, layers_expected=layers_expected, where=where)


def plan_text(plan: PrunePlan) -> str:
    """Return the file's text: stable, with each list on one line for readable diffs."""
    data = plan.as_dict()
    layers = data.pop("layers")
    lines = [f"  {json.dumps(key)}: {_json(value)}," for key, value in data.items()]
    blocks: list[str] = []
    for layer, choice in layers.items():
        inner = ",\n".join(f"      {json.dumps(key)}: {_json(value)}" for key, value in choice.items())
        blocks.append(f"    {json.dumps(layer)}: {{\n{inner}\n    }}")
    return "\n".join(["{", *lines, '  "layers": {', ",\n".join(blocks), "  }", "}", ""])


def write_prune_plan(path: Path, plan: PrunePlan) -> None:
    """Write the plan atomically."""
    write_whole(path, plan_text(plan).encode())


def read_prune_plan(path: Path, *, layers_expected: Collection[int] | None = None) -> PrunePlan:
    """Read and validate a plan."""
    return PrunePlan.of(read_json(path), layers_expected=layers_expected, where=str(path))


def read_json(path: Path) -> Any:
    """Parse a JSON file; UsageError if it cannot be read or is invalid."""
    try:
        return parsed(plain_bytes(path), reject_duplicate_keys)
    except OSError as error:
        what = f"the file cannot be read: {error.strerror or error}"
        raise UsageError(what, where=str(path), fix="check the path") from None
    except ValueError as error:
        what = f"this is not JSON: {error}"
        raise UsageError(what, where=str(path), fix="repair it, or pass another file") from None


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def is_score(value: Any) -> bool:
    """Whether a JSON value is a valid score, or null for an unknown one."""
    if value is None:
        return True
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def checked_plan(content: Any, *, layers_expected: Collection[int] | None, where: str) -> PrunePlan:
    """Return the plan; raise on the first problem."""
    if not isinstance(content, dict) or content.get("kind") != KIND:
        what = "this is not a halfbyte prune plan"
        raise UsageError(what, where=where, fix="pass a prune-plan.json, or convert a keep list to one")
    data = cast("dict[str, Any]", content)
    if data.get("version") != VERSION:
        what = f"unsupported plan version {data.get('version')}; expected {VERSION}"
        raise UsageError(what, where=where, fix=_AGAIN)
    _check_keys(data, (*_KEYS, "kept_sha256", "layers"), where)
    router = _router(data["router"], f"{where}: router")
    for key in _BLOCKS:
        _block(data[key], f"{where}: {key}")
    _block(data["source"].get(CHOSEN_ON, {}), f"{where}: source: {CHOSEN_ON}")
    for key in ("non_uniform", "edited"):
        if not isinstance(data[key], bool):
            _refuse(f"'{key}' is neither true nor false", where, "write true or false")
    layers = _layers(_block(data["layers"], f"{where}: layers"), router, where)
    check_layers(layers, router, non_uniform=data["non_uniform"], layers_expected=layers_expected, where=where)
    rule = None if data["rule"] is None else _rule(data["rule"], f"{where}: rule")
    blocks: dict[str, Any] = {key: data[key] for key in _BLOCKS}
    plan = PrunePlan(router=router, layers=layers, rule=rule, non_uniform=data["non_uniform"], **blocks)
    if data["kept_sha256"] != plan.kept_sha256():
        return replace(plan, edited=True, coverage={})  # the coverage was for other experts; --stats recomputes it
    return replace(plan, edited=data["edited"])


def check_kept(layer: int, kept: Sequence[Any], router: RouterShape, where: str) -> tuple[int, ...]:
    """Return a layer's kept experts; raise unless they are valid, unique, ascending and sufficient."""
    where = f"{where}: layer {layer}"
    for expert in kept:
        if not isinstance(expert, int) or isinstance(expert, bool):
            _refuse(f"{expert!r} is not an expert number", where, "write whole numbers")
        if not 0 <= expert < router.experts:
            _refuse(f"unknown expert {expert}", where, f"the experts are 0 to {router.experts - 1}")
    double = next((expert for expert in kept if kept.count(expert) > 1), None)
    if double is not None:
        _refuse(f"duplicate expert {double}", where, "list each expert once")
    if list(kept) != sorted(kept):
        _refuse("the experts are not in ascending order", where, "sort them: kept experts are renumbered in this order")
    check_count(len(kept), router, where=where)
    groups = [sum(expert // router.per_group == group for expert in kept) for group in range(router.n_group)]
    if min(groups) != max(groups):
        _refuse(f"the groups keep {', '.join(map(str, groups))} experts", where, "keep the same number in each")
    return tuple(kept)


def check_layers(
    layers: Mapping[int, LayerChoice],
    router: RouterShape,
    *,
    non_uniform: bool,
    layers_expected: Collection[int] | None,
    where: str,
) -> None:
    """Raise on missing or unknown layers, and on different counts unless `non_uniform` is set."""
    if not layers:
        _refuse("the plan has no layers", where, _AGAIN)
    if layers_expected is not None:
        missing = sorted(set(layers_expected) - layers.keys())
        unknown = sorted(layers.keys() - set(layers_expected))
        if missing:
            _refuse(f"the plan has no layer {missing[0]}{_more(missing)}", where, _AGAIN)
        if unknown:
            _refuse(f"the checkpoint has no routed experts in layer {unknown[0]}{_more(unknown)}", where, _AGAIN)
    counts = {layer: len(choice.kept) for layer, choice in sorted(layers.items())}
    expected_count = next(iter(counts.values()))
    other = next((layer for layer, count in counts.items() if count != expected_count), None)
    if other is not None and not non_uniform:
        what = f"layer {next(iter(counts))} keeps {expected_count} experts and layer {other} keeps {counts[other]}"
        _refuse(what, where, "keep the same number in each, or set non_uniform to true (stock vLLM cannot load that)")


def _more(layers: Sequence[int]) -> str:
    return f" and {len(layers) - 1} more" if len(layers) > 1 else ""


def _layers(content: Mapping[str, Any], router: RouterShape, where: str) -> dict[int, LayerChoice]:
    layers: dict[int, LayerChoice] = {}
    for name, choice in content.items():
        if not name.isdecimal() or str(int(name)) != name:
            _refuse(f"'{name}' is not a layer number", f"{where}: layers", "write the layer's number in quotes")
        layers[int(name)] = _layer(int(name), _block(choice, f"{where}: layer {name}"), router, where)
    return dict(sorted(layers.items()))


def _layer(layer: int, content: Mapping[str, Any], router: RouterShape, where: str) -> LayerChoice:
    here = f"{where}: layer {layer}"
    _check_keys(content, _LAYER_KEYS, here)
    kept = check_kept(layer, _list(content["kept"], here, "kept"), router, where)
    if content["count"] != len(kept) or isinstance(content["count"], bool):
        _refuse(f"'count' is {content['count']!r}, but {len(kept)} experts are kept", here, "make them agree")
    scores = _list(content["scores"], here, "scores")
    if scores and len(scores) != router.experts:
        _refuse(f"{len(scores)} scores for {router.experts} experts", here, "give all scores or none")
    bad = next((number for number, score in enumerate(scores) if not is_score(score)), None)
    if bad is not None:
        _refuse(f"invalid score {scores[bad]!r} for expert {bad}", here, "write a number >= 0, or null")
    reasons: dict[int, str] = {}
    for name, reason in _block(content["reasons"], f"{here}: reasons").items():
        if not name.isdecimal() or int(name) >= router.experts:
            _refuse(f"unknown expert '{name}'", f"{here}: reasons", f"the experts are 0 to {router.experts - 1}")
        if not isinstance(reason, str) or not reason:
            _refuse(f"the reason for expert {name} is not text", f"{here}: reasons", "write a non-empty string")
        current = _current_reason(reason, stays=int(name) in kept)
        reasons |= {} if current is None else {int(name): current}
    return LayerChoice(kept, tuple(None if score is None else float(score) for score in scores), reasons)


def _current_reason(reason: str, *, stays: bool) -> str | None:
    """Return the reason updated after an edit: an expert that had a reason to be kept may now be dropped."""
    if reason in (SUPER, SUPER_DROPPED):
        return SUPER if stays else SUPER_DROPPED
    return None if reason in (UNOBSERVED, RESTORED) and not stays else reason


def _router(content: Any, where: str) -> RouterShape:
    names = [field.name for field in fields(RouterShape)]
    block = _block(content, where)
    _check_keys(block, names, where)
    for name in names:
        if not isinstance(block[name], int) or isinstance(block[name], bool) or block[name] < 1:
            _refuse(f"invalid value {block[name]!r} for '{name}'", where, "write a whole number >= 1")
    return RouterShape(**block)


def _rule(content: Any, where: str) -> Prune:
    block = _block(content, where)
    _check_keys(block, [field.name for field in fields(Prune)], where)
    for key, kind in (("method", PruneMethod), ("statistics", PruneStatistics), ("select", PruneSelect)):
        if block[key] not in get_args(kind):
            _refuse(f"invalid value {block[key]!r} for '{key}'", where, f"use {', '.join(get_args(kind))}")
    blend = block["blend"]
    weighted = blend is None or all(is_score(value) and value is not None for value in _block(blend, where).values())
    drop, keep, tokens = block["drop"], block["keep"], block["min_tokens"]
    valid = {
        "keep": keep is None or _whole(keep, 1),
        "drop": drop is None or (isinstance(drop, float) and math.isfinite(drop) and 0 < drop < 1),
        "blend": weighted,
        "protect": isinstance(block["protect"], bool),
        "min_tokens": _whole(tokens, 0),
    }
    invalid = next((key for key, is_valid in valid.items() if not is_valid), None)
    if invalid is not None or (keep is None) == (drop is None):
        key = invalid or "keep"
        _refuse(f"invalid value {block[key]!r} for '{key}'", where, "see `prune` in the recipes, or undo the edit")
    return Prune.of(block)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _check_keys(content: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    missing = next((key for key in keys if key not in content), None)
    if missing is not None:
        _refuse(f"'{missing}' is missing", where, _AGAIN)
    unknown = next((key for key in content if key not in keys), None)
    if unknown is not None:
        _refuse(f"unknown key '{unknown}'", where, f"remove it; the valid keys are {', '.join(keys)}")


def _block(content: Any, where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        _refuse("this is not a JSON object", where, _AGAIN)
    return cast("dict[str, Any]", content)


def _list(content: Any, where: str, name: str) -> list[Any]:
    if not isinstance(content, list):
        _refuse(f"'{name}' is not a list", where, "write [0, 1, ...]")
    return cast("list[Any]", content)


def _refuse(what: str, where: str, fix: str) -> NoReturn:
    raise UsageError(what, where=where, fix=fix)
