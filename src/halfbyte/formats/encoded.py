"""An encoded linear, its quantization error, and conversion from and to PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import TensorError
from halfbyte.formats.registry import FORMATS

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
BF16Bits = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Quality:
    """Quantization error as sums that can be added over tensors."""

    weights: int
    signal: float
    error: float
    max_error: float
    saturated: int

    @property
    def sqnr_db(self) -> float:
        """Return the signal-to-quantization-noise ratio in dB; infinite if lossless."""
        if self.error == 0:
            return math.inf
        ratio = self.signal / self.error  # 0 if weights near BF16's maximum decode to infinity
        return 10 * math.log10(ratio) if ratio > 0 else -math.inf

    def merge(self, other: Quality) -> Quality:
        """Return the combined quality."""
        return Quality(
            self.weights + other.weights,
            self.signal + other.signal,
            self.error + other.error,
            max(self.max_error, other.max_error),
            self.saturated + other.saturated,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """The stored tensors of one linear [N, K].

    Encoders return BF16 and E4M3 tensors as bit patterns (uint16, uint8); `to_torch` converts them to PyTorch dtypes.
    Decoders accept both PyTorch tensors and bit patterns.
    """

    format: str
    shape: tuple[int, int]
    tensors: Mapping[str, Array]
    quality: Quality | None = None

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def to_torch(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their suffixes, ready for `safetensors.torch.save_file`."""
        dtypes = {part.suffix: part.dtype for part in FORMATS[self.format].tensors}
        return {suffix: array_to_torch(tensor, dtypes.get(suffix, "")) for suffix, tensor in self.tensors.items()}


def array_to_torch(array: Array, dtype: str) -> torch.Tensor:
    """Reinterpret a NumPy array as the PyTorch dtype of a safetensors dtype name, without copying."""
    import torch  # noqa: PLC0415 - PyTorch is optional here

    reinterpret = {"BF16": (np.int16, torch.bfloat16), "F8_E4M3": (np.uint8, torch.float8_e4m3fn)}
    if dtype not in reinterpret:
        return torch.from_numpy(array)
    plain, target = reinterpret[dtype]
    return torch.from_numpy(array.view(plain)).view(target)


# The NumPy dtype of each stored dtype, and dtypes with the same bits.
_BITS = {
    "BF16": ("uint16", "int16"),
    "F8_E4M3": ("uint8", "int8"),
    "U8": ("uint8", "int8"),
    "I32": ("int32", "uint32"),
    "F32": ("float32",),
    "F16": ("float16",),
}


def stored_array(tensor: Any, dtypes: Sequence[str], suffix: str, name: str) -> Array:
    """Return the contiguous bit patterns of a stored tensor; raise TensorError if the dtype is not one of `dtypes`.

    Kernels index memory by these dtypes, and only this function checks them.
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
    """Return BF16 bit patterns of a PyTorch tensor (BF16, F16, F32), a float array, or bit patterns.

    F16 and F32 are rounded to the nearest BF16, ties to even.
    """
    if is_torch(weight):
        import torch  # noqa: PLC0415 - the caller has imported it already

        if weight.dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise TensorError(f"{weight.dtype} weights are not supported", where=name, fix="pass BF16, F16 or F32")
        return weight.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint16).numpy()
    array = np.asarray(weight)
    if array.dtype == np.uint16:
        return np.ascontiguousarray(array)
    if array.dtype.name in ("float32", "float16"):
        from halfbyte.formats.reference.floats import f32_to_bf16  # noqa: PLC0415 - rare path

        return f32_to_bf16(np.ascontiguousarray(array, np.float32))
    raise TensorError(
        f"{array.dtype} weights are not supported", where=name, fix="pass BF16 bit patterns as uint16, or float32"
    )
