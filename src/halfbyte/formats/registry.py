"""Registry of all number formats that halfbyte reads or writes. Sizes, tensor names and docs derive from it.

Shapes are those of one linear with N outputs and K inputs; blocks run along K. `encodes` lists the scale methods;
formats without one are read-only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

WHOLE_ROW = 0
DTYPE_BITS: Mapping[str, int] = {"BF16": 16, "F16": 16, "F32": 32, "F8_E4M3": 8, "U8": 8, "I32": 32}


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor of a linear: its name suffix, dtype, and the number of weights per element."""

    suffix: str
    dtype: str
    rows: int = 1
    columns: int = 1
    fixed: tuple[int, ...] | None = None

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


@dataclass(frozen=True, slots=True)
class Format:
    """A number format in one tool's naming: the tensors of a linear and the supported operations."""

    name: str
    title: str
    element: str
    block: int
    tensors: tuple[Part, ...]
    used_by: str
    encodes: tuple[str, ...] = ()
    decodes: bool = True
    groups: tuple[int, ...] = ()

    @property
    def bits_per_weight(self) -> float:
        """Return the stored bits per weight, including block scales."""
        return float(sum((part.bits_per_weight for part in self.tensors), Fraction(0)))


def _plain(name: str, title: str, used_by: str) -> Format:
    return Format(name, title, name, 1, (Part("weight", name.upper()),), used_by)


_ROWS = (
    _plain("bf16", "BF16", "kept tensors; BF16 releases"),
    _plain("f16", "F16", "kept tensors"),
    _plain("f32", "F32", "kept tensors; router biases"),
    Format(
        "int4",
        "INT4, compressed-tensors pack-quantized",
        "int4",
        32,
        (
            Part("weight_packed", "I32", columns=8),
            Part("weight_scale", "BF16", columns=32),
            Part("weight_shape", "I32", fixed=(2,)),
        ),
        "Kimi-K2-Thinking, K2.5, K2.6, K2.7-Code releases",
        encodes=("kimi", "compressed-tensors"),
        groups=(32, 64, 128),
    ),
    Format(
        "fp8_block",
        "FP8 E4M3, 128x128 blocks",
        "e4m3",
        128,
        (Part("weight", "F8_E4M3"), Part("weight_scale_inv", "F32", rows=128, columns=128)),
        "Kimi-K2-Instruct, DeepSeek-V3 releases",
    ),
    Format(
        "fp8_channel",
        "FP8 E4M3, one scale a row (compressed-tensors float-quantized)",
        "e4m3",
        0,
        (Part("weight", "F8_E4M3"), Part("weight_scale", "BF16", columns=WHOLE_ROW)),
        "FP8 references for MI350 and Hopper",
        encodes=("max",),
    ),
    Format(
        "nvfp4",
        "NVFP4, ModelOpt spelling",
        "e2m1",
        16,
        (
            Part("weight", "U8", columns=2),
            Part("weight_scale", "F8_E4M3", columns=16),
            Part("weight_scale_2", "F32", fixed=()),
        ),
        "NVIDIA's, wafer's and decart's releases; vLLM, SGLang, TensorRT-LLM",
        encodes=("max", "mse", "compensated"),
    ),
    Format(
        "nvfp4_ct",
        "NVFP4, compressed-tensors spelling",
        "e2m1",
        16,
        (
            Part("weight_packed", "U8", columns=2),
            Part("weight_scale", "F8_E4M3", columns=16),
            Part("weight_global_scale", "F32", fixed=(1,)),
        ),
        "Red Hat's releases; vLLM, SGLang",
        encodes=("compressed-tensors", "max", "mse"),
    ),
    Format(
        "mxfp4",
        "MXFP4, Quark spelling",
        "e2m1",
        32,
        (Part("weight", "U8", columns=2), Part("weight_scale", "U8", columns=32)),
        "AMD's and wafer's releases; ATOM, vLLM and SGLang on ROCm",
        encodes=("even",),
    ),
    Format(
        "mxfp4_ct",
        "MXFP4, compressed-tensors spelling",
        "e2m1",
        32,
        (Part("weight_packed", "U8", columns=2), Part("weight_scale", "U8", columns=32)),
        "Kimi-K3's release; vLLM",
        encodes=("even",),
    ),
)

FORMATS: Mapping[str, Format] = {row.name: row for row in _ROWS}
