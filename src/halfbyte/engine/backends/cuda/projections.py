"""Determine from headers how a plan's routed experts are stacked on the device, and which stacks it encodes.

A stack is one projection of all experts of a layer, in one stored format. Experts are in the order of the output file,
so that a range of a stack is a range of the file. This module does not import PyTorch, because `halfbyte plan` uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halfbyte.families.linears import StoredLinear
from halfbyte.formats.registry import FORMATS
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ROUTED

DTYPES_IN_STACKS = ("I32", "BF16", "U8", "F8_E4M3", "F32")
SHAPE = "weight_shape"  # also in the headers; checked, not copied


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of all experts of a layer, as the checkpoint stores it."""

    name: str  # gate, up or down
    linears: tuple[StoredLinear, ...]  # in the order of the stack

    @property
    def format(self) -> str:
        """Return the stored format."""
        return self.linears[0].format

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and K."""
        return self.linears[0].shape

    @property
    def weights(self) -> int:
        """Return the number of weights per expert."""
        return self.shape[0] * self.shape[1]

    def suffixes(self) -> list[str]:
        """Return the suffixes of the tensors that are copied to the device."""
        return [part.suffix for part in FORMATS[self.format].tensors if part.suffix != SHAPE]

    @property
    def nbytes(self) -> int:
        """Return the size of the stack."""
        return sum(linear.parts[suffix].nbytes for linear in self.linears for suffix in self.suffixes())


def projections(linears: Sequence[StoredLinear]) -> list[Projection]:
    """Return the stacks of a layer's routed experts; none if their formats, shapes or dtypes differ."""
    by_name: dict[str, list[StoredLinear]] = {}
    for linear in sorted(linears, key=lambda linear: linear.module):
        assert linear.projection is not None  # routed experts are MLPs
        by_name.setdefault(linear.projection, []).append(linear)
    stacks = [Projection(name, tuple(members)) for name, members in by_name.items()]
    orders = {tuple(linear.expert for linear in stack.linears) for stack in stacks}
    return stacks if len(orders) == 1 and all(map(_is_uniform, stacks)) else []


def _is_uniform(stack: Projection) -> bool:
    first = stack.linears[0]
    stored = first.parts
    gpu = FORMATS[first.format].gpu
    return (
        gpu is not None
        and gpu.stacks
        and all(
            linear.format == first.format
            and linear.parts.keys() == stored.keys()
            and "bias" not in linear.parts
            and all((info.dtype, info.shape) == (stored[s].dtype, stored[s].shape) for s, info in linear.parts.items())
            and all(info.dtype in DTYPES_IN_STACKS for s, info in linear.parts.items() if s in stack.suffixes())
            for linear in stack.linears
        )
    )


def encodes_experts(plan: Plan) -> bool:
    """Return whether the device encodes the routed experts of a plan."""
    quantize = plan.recipe.quantize
    supported = quantize is not None and has_encoder(quantize.format, quantize.method_of(ROUTED).name)
    return supported and bool(plan.jobs)  # a plan without jobs only calibrates


def has_encoder(format: str, method: str) -> bool:
    """Whether the device encodes to a format with a method."""
    gpu = FORMATS[format].gpu
    return gpu is not None and method in gpu.encodes


def is_direct(format: str) -> bool:
    """Whether encoders read a stored format directly; others go through BF16."""
    gpu = FORMATS[format].gpu
    return gpu is not None and gpu.direct


def stacks_by_layer(plan: Plan, layers: int, *, forward: bool) -> list[list[Projection]]:
    """Return the stacks of each layer; none if the device neither runs nor encodes its routed experts."""
    routed: list[list[StoredLinear]] = [[] for _ in range(layers)]
    for linear in plan.model.linears.values() if forward or encodes_experts(plan) else ():
        if linear.role == ROUTED and linear.layer is not None and linear.layer < layers:
            routed[linear.layer].append(linear)
    return [projections(linears) if linears else [] for linears in routed]


def positions(projection: Projection) -> dict[int, int]:
    """Return the position of each expert in a stack."""
    return {int(linear.expert or 0): at for at, linear in enumerate(projection.linears)}
