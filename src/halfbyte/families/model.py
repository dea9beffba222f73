"""Describe a checkpoint as a model: a role for every tensor, a format for every linear, consistent with config.json.

`describe` is the only entry point. It needs only the headers that `open_checkpoint` has read and takes a second for
208,550 tensors. The model it returns is complete: every tensor has a role, every linear its scales, and no expert or
other required tensor is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.families.completeness import (
    Contents,
    check_kinds_of_layers,
    check_layers_alike,
    check_widths,
    count_experts,
    count_layers,
)
from halfbyte.families.family import SUFFIXES, Family, Place
from halfbyte.families.linears import (
    Signature,
    Stored,
    StoredLinear,
    identify,
    signature,
)
from halfbyte.families.registry import family_of
from halfbyte.families.required_tensors import check_required_tensors
from halfbyte.machine.interrupts import gc_paused


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint's contents. Each tensor belongs to one of `linears`, by module, or to `plain`, by name.

    `layers` counts decoder layers, including multi-token prediction layers. `moe_layers` are those with routed experts,
    `experts` is the number in each of them, `active_experts` and `shared_experts` are the numbers used per token. All
    are verified from the tensors except the last two, which only config.json has.
    """

    family: Family
    linears: Mapping[str, StoredLinear]
    plain: Mapping[str, tuple[Place, TensorInfo]]
    layers: int
    moe_layers: tuple[int, ...]
    experts: int
    active_experts: int
    shared_experts: int

    def kinds(self) -> list[tuple[StoredLinear, int]]:
        """Return one linear of each kind and its count; a kind has the same role, format, shape and tensors."""
        groups: dict[tuple[object, ...], list[StoredLinear]] = {}
        for linear in self.linears.values():
            key = (linear.role, linear.format, linear.group, linear.shape, linear.nbytes, tuple(linear.parts))
            groups.setdefault(key, []).append(linear)
        return [(linears[0], len(linears)) for linears in groups.values()]

    def expert_linears(self) -> dict[tuple[int, int, str], StoredLinear]:
        """Return the linears of all routed experts by layer, expert and projection."""
        return {
            (linear.layer, linear.expert, linear.projection): linear
            for linear in self.linears.values()
            if linear.layer is not None and linear.expert is not None and linear.projection is not None
        }

    def tensors(self) -> Iterator[tuple[str, TensorInfo]]:
        """Yield every tensor with its role."""
        for linear in self.linears.values():
            yield from ((linear.role, tensor) for tensor in linear.parts.values())
        yield from ((place.role, tensor) for place, tensor in self.plain.values())


def describe(checkpoint: Checkpoint, *, uneven: bool = False) -> Model:
    """Assign every tensor a role and every linear a format; CheckpointError if anything is inconsistent.

    With `uneven`, layers may have different numbers of experts, and `experts` is the largest.
    """
    with gc_paused():
        return _describe(checkpoint, uneven=uneven)


def _describe(checkpoint: Checkpoint, *, uneven: bool) -> Model:
    family = family_of(checkpoint.config)
    linears, plain = _sort(family, checkpoint.tensors)
    contents = Contents(family, checkpoint.config, linears, plain)
    layers = count_layers(contents)
    experts = count_experts(contents, uneven=uneven)
    check_kinds_of_layers(contents, layers)
    check_layers_alike(contents)
    check_widths(contents, experts)
    check_required_tensors(contents, layers, experts)
    return Model(
        family=family,
        linears=linears,
        plain=plain,
        layers=layers,
        moe_layers=tuple(sorted(contents.experts)),
        experts=max(experts.values(), default=0),
        active_experts=contents.number("active_experts") or 0,
        shared_experts=contents.number("shared_experts") or 0,
    )


def _sort(
    family: Family, tensors: Mapping[str, TensorInfo]
) -> tuple[dict[str, StoredLinear], dict[str, tuple[Place, TensorInfo]]]:
    """Split tensors into linears, by module, and others, by name."""
    modules: dict[str, dict[str, TensorInfo]] = {}
    others: list[TensorInfo] = []
    for name, tensor in tensors.items():
        module, _, suffix = name.rpartition(".")
        if suffix in SUFFIXES:
            modules.setdefault(module, {})[suffix] = tensor
        else:
            others.append(tensor)
    linears: dict[str, StoredLinear] = {}
    known: dict[Signature, Stored] = {}
    for module, parts in modules.items():
        role = family.linear(module)
        if role is None:
            others.extend(parts.values())
            continue
        key = signature(parts)
        stored = known.get(key)
        if stored is None:
            stored = known[key] = identify(key, module)
        linears[module] = StoredLinear(module, *role, stored.format, stored.shape, stored.group, parts)
    return linears, {tensor.name: (family.other(tensor.name), tensor) for tensor in others}
