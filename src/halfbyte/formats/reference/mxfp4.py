"""MXFP4: E2M1 codes with one power of two per 32 columns, Quark's `even` scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from halfbyte.formats.format import Reference
from halfbyte.formats.reference import floats
from halfbyte.formats.reference.floats import BF16, F32, F64, U8, Mask

BLOCK = 32
E8M0_MAX = 254
FP32_INFINITY_EXPONENT = 255
E2M1_EXPONENT = 2  # 6 = 1.5 * 2^2: the exponent of the largest E2M1 value


def block_scale(amax: F32) -> U8:
    """E8M0 byte of each block: the exponent of amax, rounded up from mantissa 1.75, minus 2. A zero block gives 0.

    From 1.75 * 2^127 the exponent would exceed FP32's range, and Quark writes its largest byte.
    """
    bits = amax.view(np.uint32)
    exponent = ((bits + np.uint32(0x200000)) >> 23).astype(np.int32) & 0xFF
    byte = np.clip(exponent - E2M1_EXPONENT, 0, E8M0_MAX)
    return np.where(exponent == FP32_INFINITY_EXPONENT, E8M0_MAX, byte).astype(np.uint8)


def encode(weight: BF16, *, keep_negative_zero: bool) -> tuple[U8, U8]:
    """Codes and scales. Quark never writes -0; compressed-tensors keeps the sign of negatives that round to 0."""
    w = floats.bf16_to_f32(weight)
    scale = block_scale(floats.block_amax(w, BLOCK))
    quotient = w / floats.spread(floats.e8m0_decode(scale), BLOCK)
    magnitude = floats.e2m1_magnitude(quotient)
    negative = (quotient < 0) & (keep_negative_zero | (magnitude > 0))
    return floats.pack_nibbles(magnitude | (negative.astype(np.uint8) << 3)), scale


def decode(packed: U8, scale: U8) -> BF16:
    """w = code * 2^(e - 127), exact in BF16."""
    code = floats.unpack_nibbles(packed)
    return floats.f32_to_bf16(floats.e2m1_decode(code) * floats.spread(floats.e8m0_decode(scale), BLOCK))


def _encoder(codes: str, *, keep_negative_zero: bool) -> Callable[[BF16, Any, U8], Mapping[str, Any]]:
    def encode_stored(weight: BF16, amax: Any, stored_scale: U8) -> Mapping[str, Any]:
        packed, scale = encode(weight, keep_negative_zero=keep_negative_zero)
        return {codes: packed, "weight_scale": scale}

    return encode_stored


def _steps(tensors: Mapping[str, Any]) -> tuple[F64, Mask]:
    scale: U8 = tensors["weight_scale"]
    return np.exp2(scale.astype(np.float64) - 127), np.ones(scale.shape, bool)


QUARK = Reference(
    decode=lambda tensors: decode(tensors["weight"], tensors["weight_scale"]),
    encoders={"even": _encoder("weight", keep_negative_zero=False)},
    steps=_steps,
)
COMPRESSED_TENSORS = Reference(
    decode=lambda tensors: decode(tensors["weight_packed"], tensors["weight_scale"]),
    encoders={"even": _encoder("weight_packed", keep_negative_zero=True)},
    steps=_steps,
)
