"""Whether a checkpoint is whole: its layers, its experts, and the numbers of config.json against the tensors.

Engines check little of this. vLLM leaves the weights of an absent expert uninitialised and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from halfbyte.errors import CheckpointError
from halfbyte.models.architecture import Architecture, Place
from halfbyte.models.linears import StoredLinear
from halfbyte.source.headers import TensorInfo

_DOWNLOAD = "download the whole checkpoint"
PER_LAYER = "num_routed_experts_per_layer"  # where layers keep different numbers; stock engines do not read it
_SEPARATED = "config.json and the weights do not belong together: download both again"


@dataclass(frozen=True, slots=True)
class Contents:
    """The sorted tensors of a checkpoint, and its config, on their way to becoming a model."""

    architecture: Architecture
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
        """Return a number of config.json by halfbyte's name for it."""
        return self.architecture.number(self.config, key)

    def key(self, key: str) -> str:
        """Return the config's own name for a number."""
        return self.architecture.keys[key] or key

    def outside_experts(self) -> Iterator[tuple[int, str]]:
        """Yield the layer and name of everything that belongs to a layer, but to no expert."""
        for linear in self.linears.values():
            if linear.layer is not None and linear.expert is None:
                yield linear.layer, linear.module
        for place, tensor in self.plain.values():
            if place.layer is not None:
                yield place.layer, tensor.name

    def contradiction(self, key: str, tensors_say: str) -> CheckpointError:
        """Return the error that config.json says one thing and the tensors another."""
        what = f"config.json says {self.key(key)} = {self.number(key)}, but {tensors_say}"
        return CheckpointError(what, where="config.json", fix=_SEPARATED)


def count_layers(contents: Contents) -> int:
    """Return the number of decoder layers; every one that config.json promises has tensors, and no other."""
    found = {layer for layer, _ in contents.outside_experts()} | contents.experts.keys()
    promised = _required(contents, "layers")
    with_extra = promised + (contents.number("extra_layers") or 0)
    if found in (set(range(promised)), set(range(with_extra))):
        return len(found)
    if found == set(range(len(found))):
        raise contents.contradiction("layers", f"the tensors have {_count(len(found), 'layer')}")
    missing = sorted(set(range(promised)) - found)
    if missing:
        raise CheckpointError(f"layer {missing[0]} has no tensors{_more(missing)}", where="weights", fix=_DOWNLOAD)
    raise contents.contradiction("layers", f"there are tensors of layer {max(found)}")


def count_experts(contents: Contents, *, uneven: bool = False) -> dict[int, int]:
    """Return the experts of each MoE layer; it has all of them, and each expert all of its linears.

    Layers with different numbers, which config.json then lists, are for those who ask for them.
    """
    if not contents.experts:
        if contents.number("experts"):
            raise contents.contradiction("experts", "no tensor belongs to an expert")
        return {}
    promised = _required(contents, "experts")
    if PER_LAYER in contents.architecture.text(contents.config):
        return _count_uneven(contents, promised, uneven=uneven)
    counts = {len(experts) for experts in contents.experts.values()}
    numbered = all(experts.keys() == set(range(len(experts))) for experts in contents.experts.values())
    if numbered and len(counts) == 1 and counts != {promised}:
        raise contents.contradiction("experts", f"each MoE layer has {_count(counts.pop(), 'expert')}")
    for layer, experts in sorted(contents.experts.items()):
        if missing := sorted(set(range(promised)) - experts.keys()):
            what = f"expert {missing[0]} is missing in layer {layer}{_more(missing)}"
            raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)
        if max(experts) >= promised:
            raise contents.contradiction("experts", f"layer {layer} has an expert {max(experts)}")
    _check_whole_experts(contents)
    return dict.fromkeys(contents.experts, promised)


def _count_uneven(contents: Contents, promised: int, *, uneven: bool) -> dict[int, int]:
    """Return the experts of each layer, where config.json lists their numbers by that of the layer."""
    found = {layer: len(experts) for layer, experts in sorted(contents.experts.items())}
    listed: Any = contents.architecture.text(contents.config)[PER_LAYER]
    where = f"{PER_LAYER} in config.json"
    numbered = all(experts.keys() == set(range(len(experts))) for experts in contents.experts.values())
    length = max(*found, _required(contents, "layers") - 1) + 1
    if not numbered or listed != [found.get(layer, 0) for layer in range(length)] or promised != max(found.values()):
        raise CheckpointError("the list is not what the layers have", where=where, fix=_SEPARATED)
    if not uneven:
        what = f"the layers keep {min(found.values())} to {max(found.values())} experts, which only audit and diff read"
        raise CheckpointError(what, where=where, fix="give a checkpoint with as many experts in each layer")
    _check_whole_experts(contents)
    return found


def _check_whole_experts(contents: Contents) -> None:
    every = {leaf for experts in contents.experts.values() for leaves in experts.values() for leaf in leaves}
    for layer, experts in sorted(contents.experts.items()):
        for expert, leaves in sorted(experts.items()):
            if missing := sorted(every - leaves):
                what = f"expert {expert} of layer {layer} has no {missing[0]}"
                raise CheckpointError(what, where=f"layer {layer}", fix=_DOWNLOAD)


def check_kinds_of_layers(contents: Contents, layers: int) -> None:
    """Each layer has experts or a dense MLP, and config.json says the same about which."""
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
    """What one MoE layer has besides its experts, every MoE layer has; dense layers likewise."""
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
    """The shapes of embedding, head, experts and routers are those that config.json gives."""
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
        wanted = 0 if place.layer is None else experts.get(place.layer, 0)
        if place.role == "router" and tensor.shape[:1] != (wanted,):
            rows = tensor.shape[0] if tensor.shape else 0
            what = f"the router has {rows} rows for {wanted} experts"
            raise CheckpointError(what, where=tensor.name, fix=_SEPARATED)


def _roles(contents: Contents, roles: tuple[str, ...]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield role, name and shape of what has these roles."""
    for linear in contents.linears.values():
        if linear.role in roles:
            yield linear.role, linear.module, linear.shape
    for place, tensor in contents.plain.values():
        if place.role in roles:
            yield place.role, tensor.name, tensor.shape


def _required(contents: Contents, key: str) -> int:
    number = contents.number(key)
    if number is None:
        where = (
            f"config.json: {contents.architecture.text_config}" if contents.architecture.text_config else "config.json"
        )
        raise CheckpointError(f"config.json has no {contents.key(key)}", where=where, fix="download it again")
    return number


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _more(missing: list[Any]) -> str:
    return f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
