"""Check that a checkpoint is complete: its layers, its experts, and config.json against the tensors.

Engines check little of this. vLLM silently leaves the weights of a missing expert uninitialized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError
from halfbyte.families.family import Family, Place
from halfbyte.families.linears import StoredLinear

_DOWNLOAD = "download the whole checkpoint"
PER_LAYER = "num_routed_experts_per_layer"  # for non-uniform expert counts; stock engines ignore it
_MISMATCH = "config.json does not match the weights: download both again"


@dataclass(frozen=True, slots=True)
class Contents:
    """A checkpoint's config and its tensors grouped into linears and others, before validation."""

    family: Family
    config: Mapping[str, Any]
    linears: Mapping[str, StoredLinear]
    plain: Mapping[str, tuple[Place, TensorInfo]]
    experts: dict[int, dict[int, set[str]]] = field(
        default_factory=dict[int, dict[int, set[str]]]
    )  # layer -> expert -> names of its linears

    def __post_init__(self) -> None:
        for linear in self.linears.values():
            if linear.layer is not None and linear.expert is not None:
                leaf = linear.module.rpartition(".")[2]
                self.experts.setdefault(linear.layer, {}).setdefault(linear.expert, set()).add(leaf)

    def number(self, key: str) -> int | None:
        """Return a number from config.json by halfbyte's key for it."""
        return self.family.number(self.config, key)

    def key(self, key: str) -> str:
        """Return the config.json key of a number."""
        return self.family.keys[key] or key

    def outside_experts(self) -> Iterator[tuple[int, str]]:
        """Yield the layer and name of every linear and tensor in a layer but not in an expert."""
        for linear in self.linears.values():
            if linear.layer is not None and linear.expert is None:
                yield linear.layer, linear.module
        for place, tensor in self.plain.values():
            if place.layer is not None:
                yield place.layer, tensor.name

    def contradiction(self, key: str, actual: str) -> CheckpointError:
        """Return the error for a config.json value that the tensors contradict."""
        what = f"config.json says {self.key(key)} = {self.number(key)}, but {actual}"
        return CheckpointError(what, where="config.json", fix=_MISMATCH)


def count_layers(contents: Contents) -> int:
    """Return the number of decoder layers; raise unless exactly the layers in config.json have tensors."""
    present = {layer for layer, _ in contents.outside_experts()} | contents.experts.keys()
    declared = _required(contents, "layers")
    with_extra = declared + (contents.number("extra_layers") or 0)
    if present in (set(range(declared)), set(range(with_extra))):
        return len(present)
    if present == set(range(len(present))):
        raise contents.contradiction("layers", f"the tensors have {_count(len(present), 'layer')}")
    missing = sorted(set(range(declared)) - present)
    if missing:
        raise CheckpointError(f"layer {missing[0]} has no tensors{_more(missing)}", where="weights", fix=_DOWNLOAD)
    raise contents.contradiction("layers", f"there are tensors of layer {max(present)}")


def count_experts(contents: Contents, *, uneven: bool = False) -> dict[int, int]:
    """Return the number of experts in each MoE layer; raise if an expert or one of its linears is missing.

    Non-uniform counts, which config.json then lists, are allowed only with `uneven`.
    """
    if not contents.experts:
        if contents.number("experts"):
            raise contents.contradiction("experts", "no tensor belongs to an expert")
        return {}
    declared = _required(contents, "experts")
    if PER_LAYER in contents.family.text(contents.config):
        return _count_uneven(contents, declared, uneven=uneven)
    counts = {len(experts) for experts in contents.experts.values()}
    numbered = all(experts.keys() == set(range(len(experts))) for experts in contents.experts.values())
    if numbered and len(counts) == 1 and counts != {declared}:
        raise contents.contradiction("experts", f"each MoE layer has {_count(counts.pop(), 'expert')}")
    for layer, experts in sorted(contents.experts.items()):
        if missing := sorted(set(range(declared)) - experts.keys()):
            what = f"expert {missing[0]} is missing in layer {layer}{_more(missing)}"
            raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)
        if max(experts) >= declared:
            raise contents.contradiction("experts", f"layer {layer} has an expert {max(experts)}")
    _check_whole_experts(contents)
    return dict.fromkeys(contents.experts, declared)


def _count_uneven(contents: Contents, declared: int, *, uneven: bool) -> dict[int, int]:
    """Return the expert counts of a checkpoint whose config.json lists them by layer."""
    counts = {layer: len(experts) for layer, experts in sorted(contents.experts.items())}
    listed: Any = contents.family.text(contents.config)[PER_LAYER]
    where = f"{PER_LAYER} in config.json"
    numbered = all(experts.keys() == set(range(len(experts))) for experts in contents.experts.values())
    length = max(*counts, _required(contents, "layers") - 1) + 1
    if not numbered or listed != [counts.get(layer, 0) for layer in range(length)] or declared != max(counts.values()):
        raise CheckpointError("the list does not match the layers", where=where, fix=_MISMATCH)
    if not uneven:
        fewest, most = min(counts.values()), max(counts.values())
        what = f"the layers have {fewest} to {most} experts, which only audit and diff support"
        raise CheckpointError(what, where=where, fix="pass a checkpoint with the same number of experts in each layer")
    _check_whole_experts(contents)
    return counts


def _check_whole_experts(contents: Contents) -> None:
    every = {leaf for experts in contents.experts.values() for leaves in experts.values() for leaf in leaves}
    for layer, experts in sorted(contents.experts.items()):
        for expert, leaves in sorted(experts.items()):
            if missing := sorted(every - leaves):
                what = f"expert {expert} of layer {layer} has no {missing[0]}"
                raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)


def check_kinds_of_layers(contents: Contents, layers: int) -> None:
    """Raise unless each layer has experts or a dense MLP, as config.json says."""
    dense = {linear.layer for linear in contents.linears.values() if linear.role == "dense_mlp"}
    first_moe = contents.number("dense_layers")
    for layer in range(layers):
        has_experts = layer in contents.experts
        if not has_experts and layer not in dense:
            what = f"layer {layer} has neither experts nor a dense MLP"
            raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)
        if first_moe is not None and has_experts != (layer >= first_moe):
            raise contents.contradiction("dense_layers", f"layer {layer} has {'' if has_experts else 'no '}experts")


def check_layers_alike(contents: Contents) -> None:
    """Raise unless all MoE layers have the same tensors outside their experts, and all dense layers too."""
    ordinary = _required(contents, "layers")
    names: dict[bool, dict[int, set[str]]] = {True: {}, False: {}}
    for layer, name in contents.outside_experts():
        if layer < ordinary:
            tail = name.partition(f".{layer}.")[2]
            names[layer in contents.experts].setdefault(layer, set()).add(tail)
    for by_layer in names.values():
        owners = {tail: layer for layer, tails in sorted(by_layer.items(), reverse=True) for tail in tails}
        for layer, tails in sorted(by_layer.items()):
            if missing := sorted(owners.keys() - tails):
                what = f"layer {layer} has no '{missing[0]}', but layer {owners[missing[0]]} has{_more(missing)}"
                raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)


def check_widths(contents: Contents, experts: Mapping[int, int]) -> None:
    """Raise unless the shapes of embedding, head, experts and routers match config.json."""
    width, vocabulary = contents.number("width"), contents.number("vocabulary")
    if width is not None and vocabulary is not None:
        for role, name, shape in _roles(contents, ("embed", "head")):
            if shape[-1] != width:
                raise contents.contradiction("width", f"the {role} has {shape[-1]} columns ({name})")
            if shape[0] != vocabulary:
                raise contents.contradiction("vocabulary", f"the {role} has {shape[0]} rows ({name})")
    expert_width = contents.number("expert_width")
    for _, name, shape in _roles(contents, ("routed_experts",)):
        if width and expert_width and shape not in ((expert_width, width), (width, expert_width)):
            raise contents.contradiction("expert_width", f"'{name}' has the shape {list(shape)}")
    for place, tensor in contents.plain.values():
        expected = 0 if place.layer is None else experts.get(place.layer, 0)
        if place.role == "router" and tensor.shape[:1] != (expected,):
            rows = tensor.shape[0] if tensor.shape else 0
            what = f"the router has {rows} rows for {expected} experts"
            raise CheckpointError(what, where=tensor.name, fix=_MISMATCH)


def _roles(contents: Contents, roles: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield role, name and shape of each linear and tensor with one of these roles."""
    for linear in contents.linears.values():
        if linear.role in roles:
            yield linear.role, linear.module, linear.shape
    for place, tensor in contents.plain.values():
        if place.role in roles:
            yield place.role, tensor.name, tensor.shape


def _required(contents: Contents, key: str) -> int:
    number = contents.number(key)
    if number is None:
        where = f"config.json: {contents.family.text_config}" if contents.family.text_config else "config.json"
        raise CheckpointError(f"config.json has no {contents.key(key)}", where=where, fix="download it again")
    return number


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _more(missing: list[Any]) -> str:
    return f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
