"""Apply pruning to a model: valid expert counts of its router, kept experts, their new indices, and the router rows.

A kept expert has the same tensors under a new index. Its linears get the output name, while their parts still point to
the source. Nothing is decoded.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.family import Family
from halfbyte.families.linears import StoredLinear, signature
from halfbyte.families.model import Model
from halfbyte.recipe.decisions import Prune

_NONE_DROPPABLE = "prune another model: this router needs all of its experts"

Kept = Mapping[int, tuple[int, ...]]  # layer -> source indices of the kept experts, ascending
_ANY_NUMBER = re.compile(r"\((?:\\d|\[0-9\])[+*]\)|(?:\\d|\[0-9\])[+*]")  # in patterns that match all experts
_NUMBERED = re.compile(r"\bexperts(?:\.|\\\.)(?:\d|[\[(\\])")  # in patterns that match single experts


@dataclass(frozen=True, slots=True)
class RouterShape:
    """Each token selects `top_k` experts from the best `topk_group` of `n_group` contiguous groups."""

    experts: int
    top_k: int
    n_group: int = 1
    topk_group: int = 1

    @property
    def per_group(self) -> int:
        """The number of experts per group before pruning."""
        return self.experts // self.n_group


def keep_count(rule: Prune, router: RouterShape) -> int:
    """Return the number of experts to keep per layer; UsageError if the router could not work with it."""
    if (rule.keep is None) == (rule.drop is None):
        what = "keep and drop are both set or both missing"
        raise UsageError(what, where="prune", fix="set exactly one of keep (a count) and drop (a fraction)")
    count = rule.count(router.experts)
    check_count(count, router, where="prune.keep" if rule.keep is not None else "prune.drop")
    return count


def refuse_nothing_to_drop(rule: Prune, router: RouterShape) -> None:
    """Raise if a rule would drop no experts; plan files are not checked here."""
    if keep_count(rule, router) < router.experts:
        return
    if rule.keep is not None:
        what = f"keeping {rule.keep} of {router.experts} experts per layer drops none"
        raise UsageError(what, where="prune.keep", fix=_fewer(router))
    least = math.ceil(1000 * router.n_group / router.experts) / 10  # one expert per group, rounded up
    what = f"{rule.drop:.2%} of {router.experts} experts is less than one: none would be dropped"
    raise UsageError(what, where="prune.drop", fix=f"drop {least:g}% or more")


def _fewer(router: RouterShape) -> str:
    most = router.experts - router.n_group
    return f"keep {most} or fewer" if most >= _least(router) else _NONE_DROPPABLE


def _least(router: RouterShape) -> int:
    """Return the smallest number of experts a layer can have."""
    if router.n_group == 1:
        return router.top_k
    return router.n_group * max(2, -(-router.top_k // router.topk_group))


def check_count(count: int, router: RouterShape, *, where: str) -> None:
    """Raise if a layer cannot keep this number of experts."""
    if count > router.experts:
        what = f"cannot keep {count} of {router.experts} experts"
        raise UsageError(what, where=where, fix=_fewer(router))
    if count < router.top_k:
        what = f"{count} experts are too few: each token is routed to {router.top_k}"
        raise UsageError(what, where=where, fix=f"keep {router.top_k} or more")
    if router.n_group > 1:
        _check_groups(count, router, where)


def _check_groups(count: int, router: RouterShape, where: str) -> None:
    """Routers select the best groups first, so every group must keep the same number of experts, and enough of them."""
    groups = router.n_group
    if router.experts % groups:
        what = f"{router.experts} experts cannot be split into {groups} equal groups"
        raise UsageError(what, where="the router in config.json", fix="check n_group: config.json is inconsistent")
    each, rest = divmod(count, groups)
    if rest:
        valid = [near for near in (each * groups, (each + 1) * groups) if _least(router) <= near < router.experts]
        fix = f"keep {' or '.join(map(str, valid))}" if valid else _fewer(router)
        raise UsageError(f"{count} experts cannot be split into {groups} equal groups", where=where, fix=fix)
    if count < (least := _least(router)):
        why = f"{router.top_k} are selected from {router.topk_group} groups"
        if each == 1:  # engines also disable grouping with one expert per group
            why = "groups are scored by their two best experts"
        number = "1 expert in a group is" if each == 1 else f"{each} experts in a group are"
        raise UsageError(
            f"{number} too few: {why}",
            where=where,
            fix=f"keep {least} or more" if least < router.experts else _NONE_DROPPABLE,
        )


def moe_layers(model: Model, layers: int | None) -> tuple[int, ...]:
    """Return the layers with routed experts among the first `layers` layers."""
    return tuple(layer for layer in model.moe_layers if layers is None or layer < layers)


def first_experts(model: Model, keep: int, layers: int | None) -> Kept:
    """Return a placeholder selection, the first `keep` experts, with the names, shapes and sizes of any other."""
    return dict.fromkeys(moe_layers(model, layers), tuple(range(keep)))


def kept_in(kept: Kept | None, layer: int | None) -> tuple[int, ...] | None:
    """Return the kept experts of a layer; None if the layer is not pruned."""
    return None if kept is None or layer is None else kept.get(layer)


def kept_digest(kept: Kept) -> str:
    """Return a hash of the kept experts."""
    ordered = [[layer, list(experts)] for layer, experts in sorted(kept.items())]
    return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]


def pruned_linears(model: Model, kept: Kept) -> Iterator[StoredLinear]:
    """Yield the kept linears, with experts under their new indices.

    `expert` remains the source's index, which the statistics use.
    """
    numbers = {layer: {old: new for new, old in enumerate(experts)} for layer, experts in kept.items()}
    for linear in model.linears.values():
        if linear.expert is None or linear.layer not in numbers:
            yield linear
        elif (new := numbers[linear.layer].get(linear.expert)) is not None:
            yield replace(linear, module=model.family.with_expert(linear.module, new))


def router_rows(info: TensorInfo, experts: Sequence[int]) -> tuple[TensorInfo, ...]:
    """Return the source ranges of the kept rows of a router tensor, merging adjacent rows."""
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
    """Return the routers' number of experts, active experts and groups."""
    chosen = model.family.text(config).get("topk_group")
    groups = model.family.number(config, "groups") or 1
    return RouterShape(model.experts, model.active_experts, groups, chosen if type(chosen) is int else groups)


def refuse_wrong_choice(model: Model, config: Mapping[str, Any], kept: Kept, layers: int | None, where: str) -> None:
    """Raise an error if the kept experts are invalid for this model."""
    # Imported here to keep NumPy out of `inspect`.
    from halfbyte.plan.prune_plan import LayerChoice, check_kept, check_layers  # noqa: PLC0415

    wanted, ordinary = moe_layers(model, layers), model.family.number(config, "layers") or model.layers
    refuse_no_experts(wanted, where)
    if extra := [layer for layer in wanted if layer not in kept and layer >= ordinary]:
        what = f"layer {extra[0]} is a multi-token prediction layer without a list of kept experts"
        raise UsageError(what, where=where, fix=f"exclude it: --layers {ordinary}")
    router = router_shape(model, config)
    choices = {layer: LayerChoice(check_kept(layer, experts, router, where)) for layer, experts in kept.items()}
    check_layers(choices, router, non_uniform=True, layers_expected=wanted, where=where)


def counts_by_layer(kept: Kept, layers: int) -> list[int] | None:
    """Return the number of kept experts per decoder layer, 0 for dense layers; None if all MoE layers keep the same.

    Patches of vLLM for non-uniform checkpoints read this list, indexed by layer.
    """
    if len({len(experts) for experts in kept.values()}) == 1:
        return None
    return [len(kept.get(layer, ())) for layer in range(layers)]


def refuse_no_experts(layers: Sequence[int], where: str) -> None:
    """Raise UsageError if there are no MoE layers."""
    if not layers:
        raise UsageError("no routed experts to prune", where=where, fix="pass a checkpoint with routed experts")


def refuse_unlike_experts(model: Model) -> None:
    """Raise CheckpointError if experts of a layer differ in size: sizes are planned before experts are selected."""
    kinds: dict[tuple[int | None, str], tuple[object, ...]] = {}
    for linear in model.linears.values():
        if linear.expert is not None:
            key, kind = (linear.layer, linear.module.rpartition(".")[2]), tuple(sorted(signature(linear.parts)))
            if kinds.setdefault(key, kind) != kind:
                what = f"the experts of layer {linear.layer} are stored in different formats or shapes"
                fix = "run 'halfbyte calibrate' first, then prune with --stats"
                raise CheckpointError(what, where=linear.module, fix=fix)


def renumbered(block: Any, family: Family, kept: Kept) -> Any:
    """Return a quantization block with experts renumbered and dropped experts removed from its lists."""
    if isinstance(block, Mapping):
        pairs = cast("Mapping[str, Any]", block).items()
        named = [(_renumbered_name(key, family, kept), renumbered(value, family, kept)) for key, value in pairs]
        return {key: value for key, value in named if key is not None}
    if isinstance(block, list):
        values = [renumbered(value, family, kept) for value in cast("list[Any]", block)]
        return [value for value in values if value is not None]
    return _renumbered_name(block, family, kept) if isinstance(block, str) else block


def _renumbered_name(name: str, family: Family, kept: Kept) -> str | None:
    if not _NUMBERED.search(_ANY_NUMBER.sub("*", name)):
        return name
    place = family.linear(name)
    if place is None or place.layer is None or place.expert is None:
        what = f"the quantization config matches single experts with a pattern: '{name}'"
        fix = "list each linear by its full name, or match all experts: pruning renumbers experts"
        raise CheckpointError(what, where="config.json", fix=fix)
    experts = kept.get(place.layer)
    if experts is None:
        return name
    return family.with_expert(name, experts.index(place.expert)) if place.expert in experts else None


def by_layer(model: Model) -> dict[int, Model]:
    """Split a model into one model per layer."""
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
        for layer in sorted({*linears, *plain})
    }
