"""A linear in a number format, what encoding it cost, and the way to PyTorch and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
        ratio = self.signal / self.error  # 0 where weights near BF16's largest came back as infinities
        return 10 * math.log10(ratio) if ratio > 0 else -math.inf

    def merge(self, other: Quality) -> Quality:
        """Return the quality of both together."""
        return Quality(
            self.weights + other.weights,
            self.signal + other.signal,
            self.error + other.error,
            max(self.max_error, other.max_error),
            self.saturated + other.saturated,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """One linear [N, K] as its format stores it.

    Encoders give BF16 and E4M3 tensors as bit patterns (uint16, uint8); `to_torch` gives them their PyTorch dtypes.
    To decode what a file holds, PyTorch tensors and bit patterns are both taken.
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
        return {suffix: array_to_torch(tensor, dtypes.get(suffix, "")) for suffix, tensor in self.tensors.items()}


def array_to_torch(array: Array, dtype: str) -> torch.Tensor:
    """Reinterpret a NumPy array as the PyTorch dtype of a safetensors dtype name, without copying."""
    import torch  # noqa: PLC0415 - only those who ask for PyTorch pay for it

    reinterpret = {"BF16": (np.int16, torch.bfloat16), "F8_E4M3": (np.uint8, torch.float8_e4m3fn)}
    if dtype not in reinterpret:
        return torch.from_numpy(array)
    plain, target = reinterpret[dtype]
    return torch.from_numpy(array.view(plain)).view(target)


# The NumPy dtype of each stored dtype, and others that hold the same bits.
_BITS = {
    "BF16": ("uint16", "int16"),
    "F8_E4M3": ("uint8", "int8"),
    "U8": ("uint8", "int8"),
    "I32": ("int32", "uint32"),
    "F32": ("float32",),
    "F16": ("float16",),
}


def stored_array(tensor: Any, dtypes: Sequence[str], suffix: str, name: str) -> Array:
    """Bit patterns of a stored tensor, contiguous and in native byte order; what is of another dtype is refused.

    Kernels index memory by these dtypes, so this is the one place where they are made sure of.
    """
    if is_torch(tensor):
        import torch  # noqa: PLC0415 - the caller has imported it already

        same_bits = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8}
        plain = tensor.detach().to("cpu").contiguous()
        array = plain.view(same_bits.get(plain.dtype, plain.dtype)).numpy()
    else:
        array = np.asarray(tensor)
    for dtype in dtypes:
        if array.dtype.isnative and array.dtype.name in _BITS[dtype]:
            return np.ascontiguousarray(array).view(_BITS[dtype][0])
    what = f"{suffix} is {array.dtype}, not {' or '.join(f'{_BITS[dtype][0]} ({dtype})' for dtype in dtypes)}"
    raise TensorError(what, where=name, fix="pass the tensor as it is stored")


def is_torch(value: Any) -> bool:
    """Whether this is a PyTorch tensor, without importing PyTorch."""
    return any(base.__module__.partition(".")[0] == "torch" for base in type(value).__mro__)


def bf16_bits(weight: Any, name: str = "tensor") -> BF16Bits:
    """BF16 bit patterns of what a caller holds: a PyTorch tensor (BF16, F16, F32), an FP32 array, or patterns.

    F16 and F32 are rounded to the nearest BF16, ties to even.
    """
    if is_torch(weight):
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
