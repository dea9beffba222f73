"""A checkpoint as a model: every tensor in its role, every linear in its format, and config.json in agreement.

`describe` is the one way in. It reads nothing but what `open_checkpoint` has read, so it costs a second for 208,550
tensors, and whatever it returns is whole: no tensor without a role, no linear without its scales, no expert and no
other part of the family missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from halfbyte.machine.collector import paused
from halfbyte.models.agreement import (
    Contents,
    check_kinds_of_layers,
    check_layers_alike,
    check_widths,
    count_experts,
    count_layers,
)
from halfbyte.models.architecture import SUFFIXES, Architecture, Place, architecture_of
from halfbyte.models.linears import Signature, Stored, StoredLinear, identify, signature
from halfbyte.models.needed import check_needed
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.headers import TensorInfo


@dataclass(frozen=True, slots=True)
class Model:
    """What a checkpoint holds. Each tensor is a part of one of `linears`, by module, or one of `plain`, by name.

    `layers` counts decoder layers, those for multi-token prediction included; `moe_layers` are those with routed
    experts, `experts` is how many each of them has, `active_experts` and `shared_experts` how many a token passes
    through. All are proven from the tensors, except the last two, which only config.json knows.
    """

    architecture: Architecture
    linears: Mapping[str, StoredLinear]
    plain: Mapping[str, tuple[Place, TensorInfo]]
    layers: int
    moe_layers: tuple[int, ...]
    experts: int
    active_experts: int
    shared_experts: int

    def kinds(self) -> list[tuple[StoredLinear, int]]:
        """Return one linear of each kind, and how many there are: alike in role, format, shape and tensors."""
        found: dict[tuple[object, ...], list[StoredLinear]] = {}
        for linear in self.linears.values():
            key = (linear.role, linear.format, linear.group, linear.shape, linear.nbytes, tuple(linear.parts))
            found.setdefault(key, []).append(linear)
        return [(linears[0], len(linears)) for linears in found.values()]

    def tensors(self) -> Iterator[tuple[str, TensorInfo]]:
        """Yield every tensor with its role."""
        for linear in self.linears.values():
            yield from ((linear.role, tensor) for tensor in linear.parts.values())
        yield from ((place.role, tensor) for place, tensor in self.plain.values())


def describe(checkpoint: Checkpoint, *, uneven: bool = False) -> Model:
    """Give every tensor its role and every linear its format; CheckpointError for whatever does not fit together.

    With `uneven`, layers may have different numbers of experts, and `experts` is the most that one has.
    """
    with paused():
        return _describe(checkpoint, uneven=uneven)


def _describe(checkpoint: Checkpoint, *, uneven: bool) -> Model:
    architecture = architecture_of(checkpoint.config)
    linears, plain = _sort(architecture, checkpoint.tensors)
    contents = Contents(architecture, checkpoint.config, linears, plain)
    layers = count_layers(contents)
    experts = count_experts(contents, uneven=uneven)
    check_kinds_of_layers(contents, layers)
    check_layers_alike(contents)
    check_widths(contents, experts)
    check_needed(contents, layers, experts)
    return Model(
        architecture=architecture,
        linears=linears,
        plain=plain,
        layers=layers,
        moe_layers=tuple(sorted(contents.experts)),
        experts=max(experts.values(), default=0),
        active_experts=contents.number("active_experts") or 0,
        shared_experts=contents.number("shared_experts") or 0,
    )


def _sort(
    architecture: Architecture, tensors: Mapping[str, TensorInfo]
) -> tuple[dict[str, StoredLinear], dict[str, tuple[Place, TensorInfo]]]:
    """Split tensors into linears, by module, and the rest, by name."""
    modules: dict[str, dict[str, TensorInfo]] = {}
    rest: list[TensorInfo] = []
    for name, tensor in tensors.items():
        module, _, suffix = name.rpartition(".")
        if suffix in SUFFIXES:
            modules.setdefault(module, {})[suffix] = tensor
        else:
            rest.append(tensor)
    linears: dict[str, StoredLinear] = {}
    known: dict[Signature, Stored] = {}
    for module, parts in modules.items():
        seat = architecture.linear(module)
        if seat is None:
            rest.extend(parts.values())
            continue
        found = signature(parts)
        stored = known.get(found)
        if stored is None:
            stored = known[found] = identify(found, module)
        linears[module] = StoredLinear(module, *seat, stored.format, stored.shape, stored.group, parts)
    return linears, {tensor.name: (architecture.other(tensor.name), tensor) for tensor in rest}
