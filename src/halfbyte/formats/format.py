"""The declaration of a number format. Each module of `formats` (int4, nvfp4, ...) fills in these classes.

Everything else looks a format up in `registry.FORMATS` and uses its properties. Declarations import neither NumPy nor
PyTorch: `lazy` loads the arithmetic when it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from halfbyte.formats.cpu.rows import EncodeOptions, Rows
    from halfbyte.formats.encoded import Array, BF16Bits, Encoded
    from halfbyte.formats.gpu.blocks import Blocks
    from halfbyte.formats.gpu.gptq import DeviceFactors

# `written_by` in config.json. The version is only in halfbyte/provenance.json: a new one must not change output bytes.
WRITTEN_BY = {"name": "halfbyte"}
WHOLE_ROW = 0
DTYPE_BITS: Mapping[str, int] = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "U8": 8, "I32": 32}


def lazy(path: str) -> Callable[[], Any]:
    """Return a function that loads `module:name` of this package."""
    module, _, name = path.partition(":")
    return lambda: getattr(import_module(f"halfbyte.formats.{module}"), name)


@dataclass(frozen=True, slots=True)
class Element:
    """The type of one code. The audit expects at least `floor_db` of SQNR; rounding alone gives 5 dB more."""

    name: str
    bits: int
    largest: float = math.inf  # value of the largest code
    floor_db: float = math.inf


E2M1 = Element("e2m1", 4, largest=6.0, floor_db=12.0)
INT4 = Element("int4", 4, largest=7.0, floor_db=12.0)
E4M3 = Element("e4m3", 8, largest=448.0, floor_db=20.0)


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor of a linear: its name suffix, dtype, and the number of weights per element.

    `also` is another dtype in which some tools store it.
    """

    suffix: str
    dtype: str
    rows: int = 1
    columns: int = 1
    fixed: tuple[int, ...] | None = None
    also: str | None = None

    def shape(self, n: int, k: int) -> tuple[int, ...]:
        """Return the stored shape for a linear with N outputs and K inputs."""
        if self.fixed is not None:
            return self.fixed
        columns = k if self.columns == WHOLE_ROW else self.columns
        return (-(-n // self.rows), -(-k // columns))

    @property
    def bits_per_weight(self) -> Fraction:
        """Return this tensor's bits per weight; tensors that do not grow with K count as 0."""
        if self.fixed is not None or self.columns == WHOLE_ROW:
            return Fraction(0)
        return Fraction(DTYPE_BITS[self.dtype], self.rows * self.columns)

    @property
    def is_tensor_scale(self) -> bool:
        """Whether it is the scale of a whole tensor, which engines share between fused linears."""
        return self.fixed is not None and self.dtype == "F32"


@dataclass(frozen=True, slots=True)
class InputScale:
    """The stored global scale of a linear's inputs; a reciprocal one divides where the other multiplies."""

    suffix: str
    shape: tuple[int, ...]
    reciprocal: bool = False


@dataclass(frozen=True, slots=True)
class Activations:
    """The format to which engines quantize the inputs of quantized linears.

    `computes_in` is the tensor-core type. `card` describes it on the model card; "{scale}" stands for the origin of the
    stored scale. `emulate` loads the function that rounds inputs with PyTorch, given a tensor scale (amax / 2688) if
    the format stores input scales; None if they cannot be emulated.
    """

    name: str
    computes_in: Literal["fp4", "fp8"]
    card: str
    emulate: Callable[[], Callable[..., torch.Tensor]] | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """A `quant_method` of config.json, and its `format` or `quant_algo` ("" if it has none)."""

    method: str
    name: str = ""
    weights_only: bool = False  # whether engines then ignore stored input scales


@dataclass(frozen=True, slots=True)
class BlockOptions:
    """The inputs of a `quantization_config`."""

    ignore: list[str]
    quantizes_inputs: bool
    kv_cache: bool  # whether it declares an FP8 KV cache
    producer_version: str | None


@dataclass(frozen=True, slots=True)
class RecipeKeys:
    """The recipe settings of a format that halfbyte writes; an empty tuple means that the key does not apply."""

    activations: tuple[str, ...] = ()
    kv_cache: tuple[str, ...] = ()
    names_producer: bool = False  # whether its config block contains the producer's version
    patterns: Literal["glob", "re:"] = "re:"  # the pattern syntax of its ignore list


@dataclass(frozen=True, slots=True)
class Reference:
    """The specification of a format on NumPy arrays, in `formats/reference`, which imports no kernels.

    `decode` takes the stored tensors by suffix and returns BF16 bit patterns. An encoder takes BF16 weights, the amax
    that sets the tensor scale, and the stored block scales: methods that take seconds per linear check only some of
    them. `steps` returns the value of code 1 in each block, and whether its scale is in the normal range.
    `input_scale` returns the stored input scale for an amax.
    """

    decode: Callable[[Mapping[str, Any]], BF16Bits]
    encoders: Mapping[str, Callable[[Array, Any, Array], Mapping[str, Array]]] = field(default_factory=dict[str, Any])
    steps: Callable[[Mapping[str, Any]], tuple[Array, Array]] | None = None
    input_scale: Callable[[float], Array] | None = None


@dataclass(frozen=True, slots=True)
class Codec:
    """The CPU implementation, in `formats/cpu`: check and open stored tensors, and encode BF16 rows."""

    read: Callable[[Format, Encoded, str], Rows]
    encode: Callable[[Format, Rows, EncodeOptions], Encoded] | None = None


@dataclass(frozen=True, slots=True)
class DeviceCodec:
    """The GPU implementation, in `formats/gpu`, on stacks [E, N, K] of experts.

    `encode` takes BF16 weights or INT4 (packed codes, scales), the amax of each expert and the method. `compensate` is
    GPTQ: it takes BF16 weights, the amax, and the factors of the Hessians. `tensor_scales` returns the stored tensor
    scale of each expert.
    """

    decode: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    encode: Callable[[torch.Tensor | tuple[torch.Tensor, torch.Tensor], torch.Tensor, str], Blocks] | None = None
    tensor_scales: Callable[[torch.Tensor, str], torch.Tensor] | None = None
    compensate: Callable[[torch.Tensor, torch.Tensor, DeviceFactors], Blocks] | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """What GPUs do with a format; known without PyTorch, for plans."""

    codec: Callable[[], DeviceCodec]
    encodes: tuple[str, ...] = ()
    stacks: bool = True  # whether the CUDA backend decodes stacks of experts from it
    direct: bool = False  # whether GPU encoders read it directly; others go through BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A number format in one tool's naming. Blocks run along K.

    `encodes` lists the scale methods, the default first; formats without one are read-only. `declared` lists the
    config.json declarations that describe it, its own first. `served_as` is the name that launch rules use, with the
    producer. `divisions` lists how its writers compute the tensor scale: CUDA builds of PyTorch use a reciprocal.
    """

    name: str
    title: str
    used_by: str
    element: Element
    block: int
    tensors: tuple[Part, ...]
    reference: Callable[[], Reference]
    cpu: Callable[[], Codec]
    gpu: Gpu | None = None
    encodes: tuple[str, ...] = ()
    decodes: bool = True
    groups: tuple[int, ...] = ()
    partial_blocks: bool = False  # whether K need not be a multiple of the block size
    divisions: tuple[str, ...] = ("ieee",)
    input_scale: InputScale | None = None
    activations: Activations | None = None
    declared: tuple[Declared, ...] = ()
    config_block: Callable[[BlockOptions], dict[str, Any]] | None = None
    hf_quant_config: Callable[[BlockOptions], dict[str, Any]] | None = None
    recipe: RecipeKeys | None = None
    served_as: str = ""
    card: str = ""

    @property
    def bits_per_weight(self) -> float:
        """Return the stored bits per weight, including block scales."""
        return float(sum((part.bits_per_weight for part in self.tensors), Fraction(0)))

    @property
    def is_plain(self) -> bool:
        """Whether it is an unquantized float."""
        return not self.declared

    @property
    def has_tensor_scale(self) -> bool:
        """Whether one scale of a whole tensor is stored, which fused linears share."""
        return any(part.is_tensor_scale for part in self.tensors)

    @property
    def input_scale_suffix(self) -> str | None:
        """Return the suffix of the stored input scale; None if it has none."""
        return None if self.input_scale is None else self.input_scale.suffix

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes of its tensors."""
        return tuple(part.suffix for part in self.tensors)
