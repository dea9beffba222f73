"""A linear in a number format, what encoding it cost, and the way to PyTorch and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import TensorError
from halfbyte.numerics.formats import FORMATS

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
BF16Bits = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Quality:
    """What an encoder lost, in sums that add up over tensors."""

    weights: int
    signal: float
    error: float
    max_error: float
    saturated: int

    @property
    def sqnr_db(self) -> float:
        """Signal over quantization noise in dB; infinite where nothing was lost."""
        if self.error == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.error) if self.signal else -math.inf

    def merge(self, other: Quality) -> Quality:
        """Return the quality of both together."""
        return Quality(
            self.weights + other.weights,
            self.signal + other.signal,
            self.error + other.error,
            max(self.max_error, other.max_error),
            self.saturated + other.saturated,
        )


@dataclass(frozen=True, slots=True)
class Encoded:
    """One linear [N, K] as its format stores it.

    BF16 and E4M3 tensors are bit patterns (uint16, uint8); `to_torch` gives them their PyTorch dtypes.
    """

    format: str
    shape: tuple[int, int]
    tensors: Mapping[str, Array]
    quality: Quality | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def to_torch(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their suffixes, ready for `safetensors.torch.save_file`."""
        dtypes = {part.suffix: part.dtype for part in FORMATS[self.format].tensors}
        return {suffix: array_to_torch(tensor, dtypes[suffix]) for suffix, tensor in self.tensors.items()}


def array_to_torch(array: Array, dtype: str) -> torch.Tensor:
    """Reinterpret a NumPy array as the PyTorch dtype of a safetensors dtype name, without copying."""
    import torch  # noqa: PLC0415 - only those who ask for PyTorch pay for it

    reinterpret = {"BF16": (np.int16, torch.bfloat16), "F8_E4M3": (np.uint8, torch.float8_e4m3fn)}
    if dtype not in reinterpret:
        return torch.from_numpy(array)
    plain, target = reinterpret[dtype]
    return torch.from_numpy(array.view(plain)).view(target)


def bf16_bits(weight: Any, name: str = "tensor") -> BF16Bits:
    """BF16 bit patterns of what a caller holds: a PyTorch tensor (BF16, F16, F32), an FP32 array, or patterns.

    F16 and F32 are rounded to the nearest BF16, ties to even.
    """
    if type(weight).__module__.partition(".")[0] == "torch":
        import torch  # noqa: PLC0415 - the caller has imported it already

        if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise TensorError(f"{weight.dtype} weights are not encoded", where=name, fix="pass BF16, F16 or F32")
        return weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint16).numpy()
    array = np.asarray(weight)
    if array.dtype == np.uint16:
        return np.ascontiguousarray(array)
    if array.dtype.name in ("float32", "float16"):
        from halfbyte.numerics.reference.floats import f32_to_bf16  # noqa: PLC0415 - rare path

        return f32_to_bf16(np.ascontiguousarray(array, np.float32))
    raise TensorError(
        f"{array.dtype} weights are not encoded", where=name, fix="pass BF16 bit patterns as uint16, or float32"
    )
