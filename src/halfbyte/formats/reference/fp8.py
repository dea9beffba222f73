"""FP8 E4M3 weights: 128x128 blocks (DeepSeek-V3, Kimi-K2-Instruct) and one scale per row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from halfbyte.formats.format import Reference
from halfbyte.formats.reference import floats
from halfbyte.formats.reference.floats import BF16, F32, F64, U8, Mask

BLOCK = 128


def decode_block(code: U8, scale_inv: F32) -> BF16:
    """w = bf16(code * scale_inv), an FP32 product despite the name; the last blocks may be partial."""
    n, k = code.shape
    decode_scale = np.repeat(np.repeat(scale_inv, BLOCK, axis=0)[:n], BLOCK, axis=1)[:, :k]
    return floats.f32_to_bf16(floats.E4M3_VALUES[code] * decode_scale)


def encode_channel(weight: BF16) -> tuple[U8, BF16]:
    """One BF16 scale per row in compressed-tensors' arithmetic: scale and quotient are rounded to BF16."""
    w = floats.bf16_to_f32(weight)
    scale = floats.bf16_round(np.abs(w).max(axis=1, keepdims=True) / floats.E4M3_MAX)
    scale = np.where(scale == 0, np.float32(2.0**-7), scale)
    quotient = floats.bf16_round(w / scale)
    return floats.e4m3_encode(quotient), floats.f32_to_bf16(scale)


def decode_channel(code: U8, scale: BF16 | F32) -> BF16:
    """w = bf16(code * scale); some tools store the scale in FP32."""
    return floats.f32_to_bf16(floats.E4M3_VALUES[code] * _per_row(scale))


def _per_row(scale: BF16 | F32) -> F32:
    return floats.bf16_to_f32(scale) if scale.dtype == np.uint16 else scale


def _encode_stored(weight: BF16, amax: Any, stored_scale: BF16) -> Mapping[str, Any]:
    code, scale = encode_channel(weight)
    return {"weight": code, "weight_scale": scale}


def _steps(tensors: Mapping[str, Any]) -> tuple[F64, Mask]:
    scale = _per_row(tensors["weight_scale"]).astype(np.float64)
    return scale, np.ones(scale.shape, bool)


BLOCK_REFERENCE = Reference(decode=lambda tensors: decode_block(tensors["weight"], tensors["weight_scale_inv"]))
CHANNEL_REFERENCE = Reference(
    decode=lambda tensors: decode_channel(tensors["weight"], tensors["weight_scale"]),
    encoders={"max": _encode_stored},
    steps=_steps,
)
