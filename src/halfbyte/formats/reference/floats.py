"""Small floats as bit patterns: BF16, E4M3, E2M1, E8M0, and packing of 4-bit codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.formats.format import Reference

# Widths as documentation: NumPy's type stubs lose them at the first operation.
F64 = F32 = U8 = I8 = I32 = BF16 = Mask = NDArray[Any]
Scalar = Any  # one np.float32

BF16_INFINITY = 0x7F80
BF16_SIGN = 0x8000

E4M3_MAX: Scalar = np.float32(448)
E4M3_TINY: Scalar = np.float32(2.0**-9)
E4M3_NAN = 0x7F


def _e4m3_table() -> F32:
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    # Exponent field 0 is subnormal (no hidden one, exponent as for field 1); the bias is 7.
    value = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    value[E4M3_NAN] = np.nan
    return np.concatenate([value, -value]).astype(np.float32)


E4M3_VALUES = _e4m3_table()

E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_THRESHOLDS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)


def bf16_to_f32(bits: BF16) -> F32:
    """BF16 is the upper half of FP32, so every value is exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def value_of_bf16(bits: int) -> Scalar:
    """Return the FP32 value of one BF16 bit pattern."""
    return bf16_to_f32(np.array([bits], np.uint16))[0]


def f32_to_bf16(value: F32) -> BF16:
    """Round FP32 to the nearest BF16, ties to even; NaN stays NaN."""
    bits: NDArray[Any] = np.asarray(value, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits >> 16 & BF16_SIGN) | 0x7FC0
    return np.where(np.isnan(value), nan, rounded).astype(np.uint16)


def bf16_round(value: F32) -> F32:
    """Round FP32 values to BF16 and back."""
    return bf16_to_f32(f32_to_bf16(value))


def e4m3_encode(value: F32) -> U8:
    """Nearest E4M3 code of finite FP32 values, ties to the even code, saturating at 448."""
    magnitude = np.minimum(np.abs(value), E4M3_MAX)
    positive = E4M3_VALUES[:E4M3_NAN]
    midpoint = (positive[:-1] + positive[1:]) / np.float32(2)  # exact: five significant bits
    code = np.searchsorted(midpoint, magnitude)  # a value on a midpoint stays below it ...
    on_midpoint = (code < midpoint.size) & (midpoint[np.minimum(code, midpoint.size - 1)] == magnitude)
    code = code + (on_midpoint & (code % 2 == 1))  # ... except where the even code is above
    return (code | (np.signbit(value) << 7)).astype(np.uint8)


def e2m1_magnitude(value: F32) -> U8:
    """Nearest E2M1 magnitude code of FP32 values, ties to the even code, saturating at 6. NaN gives 0.

    The sign rule is not here: it differs between formats.
    """
    magnitude = np.where(np.isnan(value), np.float32(0), np.abs(value))
    code = np.searchsorted(E2M1_THRESHOLDS, magnitude)  # a value on a threshold stays below it ...
    return (code + np.isin(magnitude, E2M1_THRESHOLDS[1::2])).astype(
        np.uint8
    )  # ... except where the even code is above


def e2m1_decode(code: U8) -> F32:
    """Values of 4-bit codes: sign in bit 3."""
    magnitude = E2M1_VALUES[code & 7]
    return np.where(code & 8, -magnitude, magnitude).astype(np.float32)


def e8m0_decode(exponent: U8) -> F32:
    """2^(e - 127); 0 is 2^-127, a subnormal of FP32; 255 is NaN."""
    value = np.ldexp(np.float32(1), exponent.astype(np.int32) - 127).astype(np.float32)
    return np.where(exponent == 255, np.float32(np.nan), value)  # noqa: PLR2004 - the NaN of E8M0


def pack_nibbles(code: U8) -> U8:
    """Pack two codes per byte; the even column is the low nibble."""
    return (code[..., 0::2] | (code[..., 1::2] << 4)).astype(np.uint8)


def unpack_nibbles(packed: U8) -> U8:
    """Inverse of `pack_nibbles`."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def block_amax(value: F32, block: int) -> F32:
    """Largest magnitude of each run of `block` columns: [N, K] -> [N, K / block]."""
    n, k = value.shape
    return np.abs(value).reshape(n, k // block, block).max(axis=-1)


def spread(per_block: F32, block: int) -> F32:
    """Repeat each block's scalar over its columns: [N, K / block] -> [N, K]."""
    return np.repeat(per_block, block, axis=-1)


def _decode_stored(tensors: Mapping[str, Any]) -> BF16:
    weight = tensors["weight"]
    return weight if weight.dtype == np.uint16 else f32_to_bf16(weight.astype(np.float32))


REFERENCE = Reference(decode=_decode_stored)
