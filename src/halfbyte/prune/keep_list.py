"""Keep lists as others publish them, to and from plans.

There is no standard. These forms are read:

by_layer   {"1": [0, 2, ...], ...}                       also below "keep", "kept", "kept_by_layer" or "layers", with
                                                         other keys beside it (glm-expert-pruning has "keep")
counted    {"1": {"kept": [0, 2, ...], "keep": 192}}     glm-5.2-nonuniform's plan; "kept_experts" is read too
in_order   [[0, 2, ...], ...]                            a list for each layer with routed experts, in their order
dropped    {"dropped": {"1": [1, 3, ...], ...}}          the experts that go, by layer or in order; without the word
                                                         nothing would tell them from those that stay

They name layers by the checkpoint's numbers and experts by those before pruning. The order of a list says nothing: the
kept experts are renumbered in ascending order, as the public REAP code does. What the keep192 list of Kimi-K2.6 looks
like that 0xSero stores is not known; a list in another form is refused with the forms that are read. A list has neither
scores nor reasons, so nothing can be restored from it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from halfbyte.errors import UsageError
from halfbyte.prune.plan_checks import check_kept, check_layers
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.prune.router import RouterShape
from halfbyte.write import write_whole

Form = Literal["by_layer", "counted", "in_order", "dropped"]
_OUTER = ("keep", "kept", "kept_by_layer", "layers")
_DROPPED = "dropped"
_INNER = ("kept", "kept_experts")
_TOTALS = ("n_expert", "num_experts", "old_num_experts")
_FORMS = 'write {"1": [kept experts], ...} with the numbers of layers, or a list of lists in the order of the layers'


def plan_of_keep_list(
    found: Any, router: RouterShape, layers_expected: Collection[int], *, where: str = "the list"
) -> PrunePlan:
    """Make a plan of a published list; UsageError for one that is not whole, or not of this model."""
    inside, dropped = _unwrapped(found, router, where)
    lists = _lists(inside, sorted(layers_expected), where)
    layers: dict[int, LayerChoice] = {}
    for layer, listed in sorted(lists.items()):
        kept = _sorted(listed, f"{where}: layer {layer}")
        if dropped:
            gone = set(_ids(kept, router, f"{where}: layer {layer}"))
            kept = [expert for expert in range(router.experts) if expert not in gone]
        layers[layer] = LayerChoice(check_kept(layer, kept, router, where))
    differ = len({len(choice.kept) for choice in layers.values()}) > 1
    check_layers(layers, router, non_uniform=differ, layers_expected=layers_expected, where=where)
    return PrunePlan(router=router, layers=layers, rule=None, non_uniform=differ)


def write_keep_list(path: Path, plan: PrunePlan, form: Form = "by_layer") -> None:
    """Write a plan's list, whole or not at all: a line for each layer."""
    found = keep_list(plan, form)
    text = f'{{"{_DROPPED}": {_by_line(found[_DROPPED])}}}' if form == "dropped" else _by_line(found)
    write_whole(path, f"{text}\n".encode())


def _by_line(found: dict[str, Any] | list[Any]) -> str:
    if isinstance(found, dict):
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "\n}"
    return "[\n" + ",\n".join(f"  {json.dumps(value)}" for value in found) + "\n]"


def keep_list(plan: PrunePlan, form: Form = "by_layer") -> Any:
    """Return a plan's list in a published form, as JSON has it."""
    kept = {str(layer): list(experts) for layer, experts in plan.kept().items()}
    if form == "counted":
        return {layer: {"kept": experts, "keep": len(experts)} for layer, experts in kept.items()}
    if form == "in_order":
        return list(kept.values())
    if form == "dropped":
        everyone = set(range(plan.experts))
        return {_DROPPED: {layer: sorted(everyone - set(experts)) for layer, experts in kept.items()}}
    return kept


def is_keep_list(found: Any) -> bool:
    """Whether a file's content has a form that `keep_list` writes, of whatever model."""
    if isinstance(found, dict) and list(cast("dict[str, Any]", found)) == [_DROPPED]:
        found = cast("dict[str, Any]", found)[_DROPPED]
    if isinstance(found, dict):
        blocks = cast("dict[str, Any]", found)
        if not all(name.isdecimal() for name in blocks):
            return False
        found = [cast("dict[str, Any]", one).get("kept") if isinstance(one, dict) else one for one in blocks.values()]
    if not isinstance(found, list) or not found:
        return False
    lists = cast("list[Any]", found)
    return all(isinstance(one, list) and all(type(expert) is int for expert in cast("list[Any]", one)) for one in lists)


def _lists(found: dict[str, Any] | list[Any], expected: Sequence[int], where: str) -> dict[int, list[Any]]:
    if isinstance(found, list):
        if len(found) != len(expected) or not all(isinstance(one, list) for one in found):
            _refuse(f"these are not lists of {len(expected)} layers", where, _FORMS)
        return dict(zip(expected, cast("list[list[Any]]", found), strict=True))
    lists: dict[int, list[Any]] = {}
    for name, inside in found.items():
        if isinstance(inside, dict):
            block = cast("dict[str, Any]", inside)
            inside = next((block[key] for key in _INNER if key in block), None)  # noqa: PLW2901
        if not name.isdecimal() or not isinstance(inside, list):
            _refuse(f"'{name}' is not a layer with its list of experts", where, _FORMS)
        lists[int(name)] = cast("list[Any]", inside)
    if set(lists) == set(range(len(expected))) != set(expected):
        what = f"the layers are counted from 0, but the checkpoint's first with routed experts is {expected[0]}"
        _refuse(what, where, "write the checkpoint's numbers, or the lists in order without numbers")
    return lists


def _unwrapped(found: Any, router: RouterShape, where: str) -> tuple[dict[str, Any] | list[Any], bool]:
    """Return the part of a file that holds the lists, and whether they are of those that go."""
    dropped = False
    if isinstance(found, dict):
        whole = cast("Mapping[str, Any]", found)
        total = next((whole[key] for key in _TOTALS if key in whole), router.experts)
        if total != router.experts:
            what = f"this list is of a model with {total} experts a layer, and this one has {router.experts}"
            _refuse(what, where, "give the list of this model")
        below = next((key for key in (*_OUTER, _DROPPED) if isinstance(whole.get(key), (dict, list))), None)
        dropped = below == _DROPPED
        found = whole if below is None else cast("dict[str, Any] | list[Any]", whole[below])
    if not isinstance(found, (dict, list)) or not found:
        _refuse("this is no keep list", where, _FORMS)
    return cast("dict[str, Any] | list[Any]", found), dropped


def _sorted(listed: list[Any], where: str) -> list[Any]:
    if not all(isinstance(expert, int) and not isinstance(expert, bool) for expert in listed):
        _refuse("something in this list is not the number of an expert", where, "write whole numbers")
    return sorted(listed)


def _ids(listed: list[int], router: RouterShape, where: str) -> list[int]:
    """Return dropped experts: only those that there are can go, and each once."""
    bad = next((expert for expert in listed if not 0 <= expert < router.experts), None)
    if bad is not None:
        _refuse(f"there is no expert {bad}", where, f"the experts are 0 to {router.experts - 1}")
    if len(set(listed)) != len(listed):
        double = next(expert for expert in listed if listed.count(expert) > 1)
        _refuse(f"expert {double} is there twice", where, "name each expert once")
    return listed


def _refuse(what: str, where: str, fix: str) -> NoReturn:
    raise UsageError(what, where=where, fix=fix)
