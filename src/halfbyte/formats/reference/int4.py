"""INT4 in compressed-tensors' pack-quantized layout, on Kimi's grid and on compressed-tensors' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from halfbyte.formats.format import Reference
from halfbyte.formats.reference.floats import (
    BF16,
    F64,
    I8,
    I32,
    Mask,
    bf16_round,
    bf16_to_f32,
    block_amax,
    f32_to_bf16,
    spread,
)

OFFSET = 8
BF16_TINY = np.float32(2.0**-133)  # the smallest positive BF16
ZERO_GROUP_SCALE = np.float32(2.0**-7)  # compressed-tensors' choice (the epsilon of BF16); any value decodes to 0


def pack(q: I8) -> I32:
    """Pack eight codes per word, stored as q + 8: column j is bits 4 (j % 8) .. of word j // 8."""
    n, k = q.shape
    padded = np.zeros((n, -(-k // 8) * 8), np.uint32)
    padded[:, :k] = (q.astype(np.int32) + OFFSET).astype(np.uint32)
    shifted = padded.reshape(n, -1, 8) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def unpack(packed: I32, k: int) -> I8:
    """Inverse of `pack`; `k` drops the padding of the last word."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    code = (packed.view(np.uint32)[..., None] >> shifts) & np.uint32(15)
    return (code.reshape(packed.shape[0], -1)[:, :k].astype(np.int8) - OFFSET).astype(np.int8)


def decode(packed: I32, scale: BF16, group: int = 32) -> BF16:
    """w = bf16(q * scale): one rounding, whether the product is computed in BF16 or FP32."""
    k = scale.shape[1] * group
    q = unpack(packed, k).astype(np.float32)
    with np.errstate(over="ignore"):  # 8 times a scale near BF16's maximum overflows, which encoders reject
        return f32_to_bf16(q * spread(bf16_to_f32(scale), group))


def encode_kimi(weight: BF16, group: int = 32) -> tuple[I32, BF16]:
    """Kimi's grid: scale = bf16(amax / 7), codes in [-7, 7]."""
    w = bf16_to_f32(weight)
    amax = block_amax(w, group)
    scale = np.where(amax == 0, ZERO_GROUP_SCALE, np.maximum(bf16_round(amax / np.float32(7)), BF16_TINY))
    q = np.clip(np.rint(w / spread(scale, group)), -7, 7)
    return pack(q.astype(np.int8)), f32_to_bf16(scale)


def encode_compressed_tensors(weight: BF16, group: int = 32) -> tuple[I32, BF16]:
    """compressed-tensors' own grid: every step rounds to BF16, scale = amax / 7.5, codes in [-8, 7]."""
    w = bf16_to_f32(weight)
    scale = bf16_round(block_amax(w, group) / np.float32(7.5))
    scale = np.where(scale == 0, ZERO_GROUP_SCALE, scale)
    quotient = bf16_round(w / spread(scale, group))
    q = np.rint(np.clip(quotient, -8, 7))
    return pack(q.astype(np.int8)), f32_to_bf16(scale)


def _decode_stored(tensors: Mapping[str, Any]) -> BF16:
    packed, scale = tensors["weight_packed"], tensors["weight_scale"]
    return decode(packed, scale, 8 * packed.shape[1] // scale.shape[1])


def _encoder(grid: Callable[[BF16], tuple[I32, BF16]]) -> Callable[[BF16, Any, BF16], Mapping[str, Any]]:
    def encode(weight: BF16, amax: Any, stored_scale: BF16) -> Mapping[str, Any]:
        packed, scale = grid(weight)
        return {"weight_packed": packed, "weight_scale": scale, "weight_shape": np.array(weight.shape, np.int32)}

    return encode


def _steps(tensors: Mapping[str, Any]) -> tuple[F64, Mask]:
    scale = bf16_to_f32(tensors["weight_scale"]).astype(np.float64)
    return scale, np.ones(scale.shape, bool)


REFERENCE = Reference(
    decode=_decode_stored,
    encoders={"kimi": _encoder(encode_kimi), "compressed-tensors": _encoder(encode_compressed_tensors)},
    steps=_steps,
)
