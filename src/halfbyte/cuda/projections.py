"""Which stacks a plan's routed experts make on a device, and which of them are encoded there: from headers alone.

A stack is one projection of all experts of a layer, stored alike. Experts stand in the order in which the output's
files name them, so that a part of a stack is a part of a file. Nothing here needs PyTorch: `halfbyte plan` asks too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halfbyte.models.linears import StoredLinear
from halfbyte.numerics.formats import FORMATS
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ROUTED, method_of

FORMATS_IN_STACKS = ("int4", "bf16", "fp8_block", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct")
DIRECT = ("int4", "bf16")  # what encoders take as it is stored; all else goes through BF16
DTYPES_IN_STACKS = ("I32", "BF16", "U8", "F8_E4M3", "F32")
SHAPE = "weight_shape"  # a pair of numbers that the headers say already; checked, not copied
ENCODED = {
    ("nvfp4", "max"),
    ("nvfp4", "mse"),
    ("nvfp4_ct", "max"),
    ("nvfp4_ct", "mse"),
    ("nvfp4_ct", "compressed-tensors"),
    ("mxfp4", "even"),
    ("mxfp4_ct", "even"),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of all experts of a layer, as the checkpoint stores it."""

    name: str  # gate_proj, up_proj or down_proj
    linears: tuple[StoredLinear, ...]  # in the order of the stack

    @property
    def format(self) -> str:
        """Return the format that all of them have."""
        return self.linears[0].format

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and K."""
        return self.linears[0].shape

    @property
    def weights(self) -> int:
        """Return how many weights one expert has in it."""
        return self.shape[0] * self.shape[1]

    def suffixes(self) -> list[str]:
        """Return the tensors that are copied to the device."""
        return [part.suffix for part in FORMATS[self.format].tensors if part.suffix != SHAPE]

    @property
    def nbytes(self) -> int:
        """Return what the stack takes."""
        return sum(linear.parts[suffix].nbytes for linear in self.linears for suffix in self.suffixes())


def projections(linears: Sequence[StoredLinear]) -> list[Projection]:
    """Return the stacks that a layer's routed experts make; none where they are not all stored alike."""
    by_name: dict[str, list[StoredLinear]] = {}
    for linear in sorted(linears, key=lambda linear: linear.module):
        by_name.setdefault(linear.module.rpartition(".")[2], []).append(linear)
    found = [Projection(name, tuple(members)) for name, members in by_name.items()]
    orders = {tuple(linear.expert for linear in one.linears) for one in found}
    return found if len(orders) == 1 and all(map(_alike, found)) else []


def _alike(one: Projection) -> bool:
    first = one.linears[0]
    stored = first.parts
    return first.format in FORMATS_IN_STACKS and all(
        linear.format == first.format
        and linear.parts.keys() == stored.keys()
        and "bias" not in linear.parts
        and all((info.dtype, info.shape) == (stored[s].dtype, stored[s].shape) for s, info in linear.parts.items())
        and all(info.dtype in DTYPES_IN_STACKS for s, info in linear.parts.items() if s in one.suffixes())
        for linear in one.linears
    )


def encodes_experts(plan: Plan) -> bool:
    """Whether the device encodes the routed experts of a plan."""
    quantize = plan.recipe.quantize
    known = quantize is not None and (quantize.format, method_of(ROUTED, quantize)) in ENCODED
    return known and bool(plan.jobs)  # a plan without jobs only measures


def stacks_by_layer(plan: Plan, layers: int, *, forward: bool) -> list[list[Projection]]:
    """Return the stacks of each layer: none where its routed experts are neither run nor encoded on the device."""
    found: list[list[StoredLinear]] = [[] for _ in range(layers)]
    for linear in plan.model.linears.values() if forward or encodes_experts(plan) else ():
        if linear.role == ROUTED and linear.layer is not None and linear.layer < layers:
            found[linear.layer].append(linear)
    return [projections(linears) if linears else [] for linears in found]


def positions(projection: Projection) -> dict[int, int]:
    """Return where each expert stands in a stack."""
    return {int(linear.expert or 0): at for at, linear in enumerate(projection.linears)}
