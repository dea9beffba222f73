"""Convert published keep lists to and from prune plans.

There is no standard. These forms are supported:

by_layer   {"1": [0, 2, ...], ...}                       also under "keep", "kept", "kept_by_layer" or "layers", next
                                                         to other keys (glm-expert-pruning has "keep")
counted    {"1": {"kept": [0, 2, ...], "keep": 192}}     glm-5.2-nonuniform's plan; "kept_experts" is accepted too
in_order   [[0, 2, ...], ...]                            one list per layer with routed experts, in layer order
dropped    {"dropped": {"1": [1, 3, ...], ...}}          the dropped experts, by layer or in order; without the key
                                                         they could not be distinguished from kept ones

Lists use the checkpoint's layer numbers and the expert numbers before pruning. The order in a list has no meaning: kept
experts are renumbered in ascending order, as in the public REAP code. The form of 0xSero's keep192 list for Kimi-K2.6
is unknown; an unsupported form is an error that names the supported ones. A list has no scores or reasons, so no
experts can be restored from it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.errors import UsageError
from halfbyte.options.convert import PruneOptions
from halfbyte.plan.prune_plan import KIND, LayerChoice, PrunePlan, check_kept, check_layers, read_json
from halfbyte.plan.pruned import RouterShape

Form = Literal["by_layer", "counted", "in_order", "dropped"]
_OUTER = ("keep", "kept", "kept_by_layer", "layers")
_DROPPED = "dropped"
_INNER = ("kept", "kept_experts")
_TOTALS = ("n_expert", "num_experts", "old_num_experts")
_FORMS = 'write {"1": [kept experts], ...} with layer numbers, or a list of lists in layer order'

_MOST_NBYTES = 1 << 26  # the plan of Kimi-K2.6 has 0.5 MB; avoids reading whole shards


def plan_of_keep_list(
    content: Any, router: RouterShape, layers_expected: Collection[int], *, where: str = "the list"
) -> PrunePlan:
    """Build a plan from a published list; UsageError if it is incomplete or for another model."""
    inside, dropped = _unwrapped(content, router, where)
    lists = _lists(inside, sorted(layers_expected), where)
    layers: dict[int, LayerChoice] = {}
    for layer, listed in sorted(lists.items()):
        kept = _sorted(listed, f"{where}: layer {layer}")
        if dropped:
            dropped_experts = set(_ids(kept, router, f"{where}: layer {layer}"))
            kept = [expert for expert in range(router.experts) if expert not in dropped_experts]
        layers[layer] = LayerChoice(check_kept(layer, kept, router, where))
    differ = len({len(choice.kept) for choice in layers.values()}) > 1
    check_layers(layers, router, non_uniform=differ, layers_expected=layers_expected, where=where)
    return PrunePlan(router=router, layers=layers, rule=None, non_uniform=differ)


def write_keep_list(path: Path, plan: PrunePlan, form: Form = "by_layer") -> None:
    """Write a plan's keep list atomically, with one line per layer."""
    content = keep_list(plan, form)
    text = f'{{"{_DROPPED}": {_by_line(content[_DROPPED])}}}' if form == "dropped" else _by_line(content)
    write_whole(path, f"{text}\n".encode())


def _by_line(content: dict[str, Any] | list[Any]) -> str:
    if isinstance(content, dict):
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()) + "\n}"
    return "[\n" + ",\n".join(f"  {json.dumps(value)}" for value in content) + "\n]"


def keep_list(plan: PrunePlan, form: Form = "by_layer") -> Any:
    """Return a plan's keep list in a published form, as JSON data."""
    kept = {str(layer): list(experts) for layer, experts in plan.kept().items()}
    if form == "counted":
        return {layer: {"kept": experts, "keep": len(experts)} for layer, experts in kept.items()}
    if form == "in_order":
        return list(kept.values())
    if form == "dropped":
        every = set(range(plan.experts))
        return {_DROPPED: {layer: sorted(every - set(experts)) for layer, experts in kept.items()}}
    return kept


def is_keep_list(content: Any) -> bool:
    """Whether JSON data has a form that `keep_list` writes, for any model."""
    if isinstance(content, dict) and list(cast("dict[str, Any]", content)) == [_DROPPED]:
        content = cast("dict[str, Any]", content)[_DROPPED]
    if isinstance(content, dict):
        blocks = cast("dict[str, Any]", content)
        if not all(name.isdecimal() for name in blocks):
            return False
        content = [cast("dict[str, Any]", row).get("kept") if isinstance(row, dict) else row for row in blocks.values()]
    if not isinstance(content, list) or not content:
        return False
    lists = cast("list[Any]", content)
    return all(isinstance(row, list) and all(type(expert) is int for expert in cast("list[Any]", row)) for row in lists)


def _lists(content: dict[str, Any] | list[Any], expected: Sequence[int], where: str) -> dict[int, list[Any]]:
    if isinstance(content, list):
        if len(content) != len(expected) or not all(isinstance(item, list) for item in content):
            raise UsageError(f"the file does not have lists for {len(expected)} layers", where=where, fix=_FORMS)
        return dict(zip(expected, cast("list[list[Any]]", content), strict=True))
    lists: dict[int, list[Any]] = {}
    for name, experts in content.items():
        if isinstance(experts, dict):
            block = cast("dict[str, Any]", experts)
            experts = next((block[key] for key in _INNER if key in block), None)  # noqa: PLW2901
        if not name.isdecimal() or not isinstance(experts, list):
            raise UsageError(f"'{name}' is not a layer number with a list of experts", where=where, fix=_FORMS)
        lists[int(name)] = cast("list[Any]", experts)
    if set(lists) == set(range(len(expected))) != set(expected):
        what = f"the layers are numbered from 0, but the checkpoint's first MoE layer is {expected[0]}"
        raise UsageError(
            what, where=where, fix="use the checkpoint's layer numbers, or a list of lists without numbers"
        )
    return lists


def _unwrapped(content: Any, router: RouterShape, where: str) -> tuple[dict[str, Any] | list[Any], bool]:
    """Return the part of a file that has the lists, and whether they name dropped experts."""
    dropped = False
    if isinstance(content, dict):
        mapping = cast("Mapping[str, Any]", content)
        total = next((mapping[key] for key in _TOTALS if key in mapping), router.experts)
        if total != router.experts:
            what = f"the list is for a model with {total} experts per layer, but this one has {router.experts}"
            raise UsageError(what, where=where, fix="pass the list for this model")
        list_key = next((key for key in (*_OUTER, _DROPPED) if isinstance(mapping.get(key), (dict, list))), None)
        dropped = list_key == _DROPPED
        content = mapping if list_key is None else cast("dict[str, Any] | list[Any]", mapping[list_key])
    if not isinstance(content, (dict, list)) or not content:
        raise UsageError("this is not a keep list", where=where, fix=_FORMS)
    return cast("dict[str, Any] | list[Any]", content), dropped


def _sorted(listed: list[Any], where: str) -> list[Any]:
    if not all(isinstance(expert, int) and not isinstance(expert, bool) for expert in listed):
        raise UsageError("the list has an entry that is not an expert number", where=where, fix="write whole numbers")
    return sorted(listed)


def _ids(listed: list[int], router: RouterShape, where: str) -> list[int]:
    """Return the dropped experts; raise on unknown or duplicate ones."""
    bad = next((expert for expert in listed if not 0 <= expert < router.experts), None)
    if bad is not None:
        raise UsageError(f"unknown expert {bad}", where=where, fix=f"the experts are 0 to {router.experts - 1}")
    if len(set(listed)) != len(listed):
        double = next(expert for expert in listed if listed.count(expert) > 1)
        raise UsageError(f"duplicate expert {double}", where=where, fix="list each expert once")
    return listed


def refuse_to_replace(options: PruneOptions, source: Path) -> None:
    """Raise for paths in the source, existing files that are neither plan nor keep list, and one path for both.

    A mistyped path must not overwrite a checkpoint's config.json.
    """
    files = {"--plan-only": options.plan_only, "--keep-list": options.keep_list}
    paths = {option: path for option, path in files.items() if path is not None}
    for option, path in paths.items():
        if _is_inside(path, source):
            what = f"{option} would write into the source, which is read-only"
            raise UsageError(what, where=str(path), fix="pass a path outside it")
        if path.exists() and not _is_ours(path):
            what = f"{option} would replace a file that is neither a prune plan nor a keep list"
            raise UsageError(what, where=str(path), fix="pass a new path, or move the file away")
    if len({path.resolve() for path in paths.values()}) < len(paths):
        what = "--plan-only and --keep-list are the same file"
        raise UsageError(what, where=str(paths["--keep-list"]), fix="pass two different paths")


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, or the target of a link at it, is in a folder."""
    return any(real.is_relative_to(folder.resolve()) for real in (path.parent.resolve() / path.name, path.resolve()))


def _is_ours(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _MOST_NBYTES:
        return False
    try:
        content = read_json(path)
    except UsageError:
        return False
    if isinstance(content, dict) and "kind" in content:
        return cast("dict[str, Any]", content)["kind"] == KIND
    return is_keep_list(content)
