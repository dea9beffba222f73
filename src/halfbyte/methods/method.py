"""The declaration of a quantization method: its statistics, its granularity, and its encoder of linear groups.

Declarations import neither NumPy nor PyTorch, because recipes and plans use them. Kernels belong to number formats: a
method runs on a device if the format has a kernel with its name there (`Format.encodes` for CPUs, `Format.gpu.encodes`
for GPUs), or calls such kernels itself (`Method.formats`, on CPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from halfbyte.formats.encoded import Encoded

Statistics = Literal["none", "hessian"]  # of the inputs of routed experts, collected during calibration
# The linears of a job: those that engines fuse, or all of an expert (or of another module).
Granularity = Literal["fused group", "module"]


@dataclass(frozen=True, slots=True)
class Linear:
    """One linear of a group, as the source stores it."""

    module: str  # its name in the output
    weights: Encoded
    amax: float | None = None  # of all linears that share its tensor scale; None: its own
    name: str = "tensor"  # its name in the source, for errors
    expert: int | None = None
    has_expert_inputs: bool = False  # whether its inputs are the expert's activations; else all experts share them


@dataclass(frozen=True, slots=True)
class Group:
    """The linears of a job, and the format to write."""

    format: str
    linears: Sequence[Linear]


Encode = Callable[[Group], "dict[str, Encoded]"]  # tensors by module


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A quantization method.

    `encoder` takes the statistics of a layer, None for a method without, and returns the function that encodes the
    groups of that layer on the calling thread. A method for some `roles` only uses `otherwise` for all others.
    `formats` are those that it writes besides the formats with a kernel of its name. `sample` returns statistics of
    random inputs for a linear of `sample_width` columns, to estimate its time, which is proportional to the width.
    """

    name: str
    title: str  # on the model card
    encoder: Callable[[Any], Encode]
    statistics: Statistics = "none"
    granularity: Granularity = "fused group"
    roles: tuple[str, ...] | None = None
    otherwise: str | None = None
    formats: tuple[str, ...] = ()
    sample: Callable[[int], Any] | None = None
    sample_width: int | None = None

    @property
    def needs_hessians(self) -> bool:
        """Whether it needs the Hessians of expert inputs, which are never saved."""
        return self.statistics == "hessian"


def encode_with_kernel(method: str, linear: Linear, format: str, **options: Any) -> Encoded:
    """Encode one linear with a format's CPU kernel on the calling thread."""
    from halfbyte.formats.codec import encode  # noqa: PLC0415 - imports NumPy

    return encode(linear.weights, format, method=method, amax=linear.amax, name=linear.name, threads=1, **options)
