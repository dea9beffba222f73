"""What pruning makes of a model: which experts stay, under which number, and which rows of the routers with them.

A kept expert is the same tensors in another seat: its linears get the name that is written, while their parts go on to
say where the source has them. Nothing is decoded for that.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.models.architecture import Architecture
from halfbyte.models.linears import StoredLinear, signature
from halfbyte.models.model import Model
from halfbyte.prune.router import RouterShape
from halfbyte.source.headers import TensorInfo

Kept = Mapping[int, tuple[int, ...]]  # layer -> the source's numbers of the experts that stay, ascending
_ANY_NUMBER = re.compile(r"\((?:\\d|\[0-9\])[+*]\)|(?:\\d|\[0-9\])[+*]")  # of a pattern that means all experts
_NUMBERED = re.compile(r"\bexperts(?:\.|\\\.)(?:\d|[\[(\\])")  # a pattern that tells experts of a layer apart


def moe_layers(model: Model, layers: int | None) -> tuple[int, ...]:
    """Return the layers with routed experts among those that are written."""
    return tuple(layer for layer in model.moe_layers if layers is None or layer < layers)


def first_experts(model: Model, keep: int, layers: int | None) -> Kept:
    """Return a choice that has the names, shapes and sizes of any other of its number: the first experts."""
    return dict.fromkeys(moe_layers(model, layers), tuple(range(keep)))


def kept_in(kept: Kept | None, layer: int | None) -> tuple[int, ...] | None:
    """Return the experts of a layer that stay; None where pruning leaves it alone."""
    return None if kept is None or layer is None else kept.get(layer)


def kept_digest(kept: Kept) -> str:
    """Return a hash of a choice."""
    ordered = [[layer, list(experts)] for layer, experts in sorted(kept.items())]
    return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]


def pruned_linears(model: Model, kept: Kept) -> Iterator[StoredLinear]:
    """Yield the linears that stay: experts under their new numbers, everything else as it is.

    `expert` remains the source's number, by which statistics know it.
    """
    numbers = {layer: {old: new for new, old in enumerate(experts)} for layer, experts in kept.items()}
    for linear in model.linears.values():
        if linear.expert is None or linear.layer not in numbers:
            yield linear
        elif (new := numbers[linear.layer].get(linear.expert)) is not None:
            yield replace(linear, module=model.architecture.with_expert(linear.module, new))


def router_rows(info: TensorInfo, experts: Sequence[int]) -> tuple[TensorInfo, ...]:
    """Return the rows of a router's tensor that stay: a stretch of the source for each run of neighbours."""
    nbytes = info.nbytes // info.shape[0]
    runs: list[list[int]] = []
    for expert in experts:
        if runs and runs[-1][1] == expert:
            runs[-1][1] += 1
        else:
            runs.append([expert, expert + 1])
    return tuple(
        info._replace(
            shape=(end - first, *info.shape[1:]), begin=info.begin + first * nbytes, end=info.begin + end * nbytes
        )
        for first, end in runs
    )


def router_shape(model: Model, config: Mapping[str, Any]) -> RouterShape:
    """Return how the model's routers choose."""
    chosen = model.architecture.text(config).get("topk_group")
    groups = model.architecture.number(config, "groups") or 1
    return RouterShape(model.experts, model.active_experts, groups, chosen if type(chosen) is int else groups)


def refuse_wrong_choice(model: Model, config: Mapping[str, Any], kept: Kept, layers: int | None, where: str) -> None:
    """Refuse a choice that this model cannot be pruned to, before anything is written."""
    from halfbyte.prune.plan_checks import check_kept, check_layers  # noqa: PLC0415 - `inspect` does without NumPy
    from halfbyte.prune.plan_file import LayerChoice  # noqa: PLC0415

    wanted, ordinary = moe_layers(model, layers), model.architecture.number(config, "layers") or model.layers
    refuse_no_experts(wanted, where)
    if extra := [layer for layer in wanted if layer not in kept and layer >= ordinary]:
        what = f"layer {extra[0]} is for multi-token prediction: nothing says which of its experts stay"
        raise UsageError(what, where=where, fix=f"leave it out: --layers {ordinary}")
    router = router_shape(model, config)
    choices = {layer: LayerChoice(check_kept(layer, experts, router, where)) for layer, experts in kept.items()}
    check_layers(choices, router, non_uniform=True, layers_expected=wanted, where=where)


def counts_by_layer(kept: Kept, layers: int) -> list[int] | None:
    """Return how many experts each decoder layer keeps, 0 where it has none; None where one number says it all.

    This is the list of those who patch vLLM for such checkpoints: its index is the number of the layer.
    """
    if len({len(experts) for experts in kept.values()}) == 1:
        return None
    return [len(kept.get(layer, ())) for layer in range(layers)]


def refuse_no_experts(layers: Sequence[int], where: str) -> None:
    """Refuse a model that has nothing to prune."""
    if not layers:
        raise UsageError("there are no routed experts to prune", where=where, fix="give a checkpoint with experts")


def refuse_unlike_experts(model: Model) -> None:
    """Sizes are planned before experts are chosen, so that any choice must have the same ones."""
    kinds: dict[tuple[int | None, str], tuple[object, ...]] = {}
    for linear in model.linears.values():
        if linear.expert is not None:
            key, kind = (linear.layer, linear.module.rpartition(".")[2]), tuple(sorted(signature(linear.parts)))
            if kinds.setdefault(key, kind) != kind:
                what = f"the experts of layer {linear.layer} are not all stored alike"
                fix = "measure first (halfbyte calibrate), then prune with --stats: sizes are known then"
                raise CheckpointError(what, where=linear.module, fix=fix)


def renumbered(block: Any, architecture: Architecture, kept: Kept) -> Any:
    """Return a quantization block whose lists name experts by their new numbers; those that go are named no more."""
    if isinstance(block, Mapping):
        pairs = cast("Mapping[str, Any]", block).items()
        named = [
            (_renumbered_name(key, architecture, kept), renumbered(value, architecture, kept)) for key, value in pairs
        ]
        return {key: value for key, value in named if key is not None}
    if isinstance(block, list):
        found = [renumbered(value, architecture, kept) for value in cast("list[Any]", block)]
        return [value for value in found if value is not None]
    return _renumbered_name(block, architecture, kept) if isinstance(block, str) else block


def _renumbered_name(name: str, architecture: Architecture, kept: Kept) -> str | None:
    if not _NUMBERED.search(_ANY_NUMBER.sub("*", name)):
        return name
    seat = architecture.linear(name)
    if seat is None or seat.layer is None or seat.expert is None:
        what = f"the quantization config names experts by number in a pattern: '{name}'"
        fix = "name each linear in full there, or all experts alike: the pattern would mean others after pruning"
        raise CheckpointError(what, where="config.json", fix=fix)
    experts = kept.get(seat.layer)
    if experts is None:
        return name
    return architecture.with_expert(name, experts.index(seat.expert)) if seat.expert in experts else None


def by_layer(model: Model) -> dict[int, Model]:
    """Return each layer as a model of its own."""
    linears: dict[int, dict[str, StoredLinear]] = {}
    for module, linear in model.linears.items():
        if linear.layer is not None:
            linears.setdefault(linear.layer, {})[module] = linear
    plain: dict[int, dict[str, Any]] = {}
    for name, (place, info) in model.plain.items():
        if place.layer is not None:
            plain.setdefault(place.layer, {})[name] = (place, info)
    return {
        layer: replace(model, linears=linears.get(layer, {}), plain=plain.get(layer, {}))
        for layer in _both(linears, plain)
    }


def _both(left: Iterable[int], right: Iterable[int]) -> list[int]:
    return sorted({*left, *right})
