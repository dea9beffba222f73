"""NVFP4 as in ModelOpt and compressed-tensors: E2M1 codes, an E4M3 scale per 16 columns, an FP32 scale per tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from halfbyte.formats.format import Reference
from halfbyte.formats.reference import floats
from halfbyte.formats.reference.floats import BF16, F32, F64, U8, Mask, Scalar

BLOCK = 16
E2M1_MAX: Scalar = np.float32(6)
CODE_RANGE: Scalar = np.float32(6 * 448)  # 2688: the largest code times the largest block scale
ZERO_BLOCK_COMPRESSED_TENSORS = np.uint8(0x20)  # 0.125
# amax used for an all-zero group of weights, where ModelOpt divides 0 by 0. It keeps every scale finite and positive,
# and the weights decode to exactly zero.
ZERO_TENSOR_AMAX: Scalar = np.float32(6)
SWEPT_BLOCKS = 64  # the exact sweep takes 5 ms per block, so only some scales of each linear are checked, but all codes
_E4M3_NORMAL, _E4M3_LARGEST = 8, 0x7E  # scale bytes in between are neither subnormal nor saturated


def tensor_scale(amax: Scalar, *, division: str = "ieee") -> Scalar:
    """`weight_scale_2` = amax / 2688.

    CUDA builds of PyTorch multiply by the rounded reciprocal instead, one ulp away for 28 of 128 mantissas; pass
    division="reciprocal" to compare with checkpoints that were made on a GPU.
    """
    amax = ZERO_TENSOR_AMAX if amax == 0 else np.float32(amax)
    return (
        np.float32(amax * (np.float32(1) / CODE_RANGE)) if division == "reciprocal" else np.float32(amax / CODE_RANGE)
    )


def block_scale_max(amax: F32, decode_scale_2: Scalar) -> U8:
    """ModelOpt's max: the block's largest weight maps to about 6."""
    scale = amax / (E2M1_MAX * decode_scale_2)  # the product is rounded first
    scale = np.where(scale == 0, np.float32(1), scale)
    return floats.e4m3_encode(np.clip(scale, floats.E4M3_TINY, floats.E4M3_MAX))


def codes(weight: BF16, scale: U8, decode_scale_2: Scalar) -> U8:
    """ModelOpt's codes for given scales. The sign is that of the quotient: -0.0 gives 0, a tiny negative gives 8."""
    decode_scale = floats.E4M3_VALUES[scale] * decode_scale_2  # rounded before the division
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = floats.bf16_to_f32(weight) / floats.spread(decode_scale, BLOCK)
    return floats.pack_nibbles(floats.e2m1_magnitude(quotient) | ((quotient < 0).astype(np.uint8) << 3))


def encode_max(weight: BF16, decode_scale_2: Scalar) -> tuple[U8, U8]:
    """Codes and block scales, ModelOpt's `max`."""
    scale = block_scale_max(floats.block_amax(floats.bf16_to_f32(weight), BLOCK), decode_scale_2)
    return codes(weight, scale, decode_scale_2), scale


def decode(packed: U8, scale: U8, decode_scale_2: Scalar) -> BF16:
    """w = bf16(code * fl(scale * scale_2)), as in ModelOpt, whose table has no negative zero."""
    decode_scale = floats.E4M3_VALUES[scale] * decode_scale_2
    value = floats.e2m1_decode(floats.unpack_nibbles(packed)) + np.float32(0)  # -0.0 + 0.0 is 0.0
    return floats.f32_to_bf16(value * floats.spread(decode_scale, BLOCK))


def global_scale(amax: Scalar) -> Scalar:
    """compressed-tensors' `weight_global_scale`: PyTorch computes 2688 / amax as a reciprocal and a product in BF16.

    It has 8 significant bits. If it is not finite (amax 0, or below 8e-36) it is 1.
    """
    with np.errstate(over="ignore", divide="ignore"):
        reciprocal = floats.bf16_round(np.reciprocal(np.array([amax], np.float32)))
        scale = floats.bf16_round(reciprocal * CODE_RANGE)[0]
    return scale if np.isfinite(scale) else np.float32(1)


def encode_compressed_tensors(weight: BF16, encode_scale_2: Scalar) -> tuple[U8, U8]:
    """Codes and block scales in compressed-tensors' own arithmetic."""
    w = floats.bf16_to_f32(weight)
    local = floats.bf16_round(floats.block_amax(w, BLOCK) / E2M1_MAX)
    scale = floats.e4m3_encode(np.clip(encode_scale_2 * local, -floats.E4M3_MAX, floats.E4M3_MAX))
    scale = np.where(scale == 0, ZERO_BLOCK_COMPRESSED_TENSORS, scale)
    quotient = w / floats.spread(floats.E4M3_VALUES[scale] / encode_scale_2, BLOCK)
    return floats.pack_nibbles(floats.e2m1_magnitude(quotient) | ((quotient < 0).astype(np.uint8) << 3)), scale


def decode_compressed_tensors(packed: U8, scale: U8, encode_scale_2: Scalar) -> BF16:
    """w = bf16(code * fl(scale / global_scale))."""
    decode_scale = floats.E4M3_VALUES[scale] / encode_scale_2
    return floats.f32_to_bf16(floats.e2m1_decode(floats.unpack_nibbles(packed)) * floats.spread(decode_scale, BLOCK))


def _swept(weight: BF16, amax: Scalar, stored_scale: U8) -> U8:
    """Return the stored block scales with some of them replaced by those of the sweep."""
    from halfbyte.formats.reference.sweep import best_scale  # noqa: PLC0415 - sweep.py imports this module

    scale: U8 = np.array(stored_scale)
    for block in range(0, scale.size, max(1, scale.size // SWEPT_BLOCKS)):
        values = floats.bf16_to_f32(weight.reshape(-1, BLOCK)[block])
        scale.reshape(-1)[block] = best_scale(values, float(amax) or 1.0)
    return scale


def _modelopt_codes(weight: BF16, amax: Scalar, stored_scale: U8, *, sweep: bool) -> tuple[U8, U8]:
    decode_scale_2 = tensor_scale(amax)
    if not sweep:
        return encode_max(weight, decode_scale_2)
    scale = _swept(weight, amax, stored_scale)
    return codes(weight, scale, decode_scale_2), scale


def _encode_modelopt(weight: BF16, amax: Scalar, stored_scale: U8, *, sweep: bool) -> Mapping[str, Any]:
    packed, scale = _modelopt_codes(weight, amax, stored_scale, sweep=sweep)
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": np.array(tensor_scale(amax), np.float32)}


def _encode_modelopt_as_ct(weight: BF16, amax: Scalar, stored_scale: U8, *, sweep: bool) -> Mapping[str, Any]:
    """ModelOpt's codes in compressed-tensors' spelling."""
    packed, scale = _modelopt_codes(weight, amax, stored_scale, sweep=sweep)
    encode_scale_2 = np.array([CODE_RANGE / (amax or ZERO_TENSOR_AMAX)], np.float32)
    return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": encode_scale_2}


def _encode_ct(weight: BF16, amax: Scalar, stored_scale: U8) -> Mapping[str, Any]:
    encode_scale_2 = global_scale(amax)
    packed, scale = encode_compressed_tensors(weight, encode_scale_2)
    global_scales = np.array([encode_scale_2], np.float32)
    return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": global_scales}


def _one(tensor: F32) -> Scalar:
    return np.float32(tensor.reshape(-1)[0])


def _modelopt_steps(tensors: Mapping[str, Any]) -> tuple[F64, Mask]:
    scale = tensors["weight_scale"]
    return floats.E4M3_VALUES[scale].astype(np.float64) * float(_one(tensors["weight_scale_2"])), _is_normal(scale)


def _ct_steps(tensors: Mapping[str, Any]) -> tuple[F64, Mask]:
    scale = tensors["weight_scale"]
    return floats.E4M3_VALUES[scale].astype(np.float64) / float(_one(tensors["weight_global_scale"])), _is_normal(scale)


def _is_normal(scale: U8) -> Mask:
    return (scale >= _E4M3_NORMAL) & (scale < _E4M3_LARGEST)


MODELOPT = Reference(
    decode=lambda tensors: decode(tensors["weight"], tensors["weight_scale"], _one(tensors["weight_scale_2"])),
    encoders={"max": partial(_encode_modelopt, sweep=False), "mse": partial(_encode_modelopt, sweep=True)},
    steps=_modelopt_steps,
    input_scale=lambda amax: np.array(np.float32(amax) / CODE_RANGE, np.float32),
)
COMPRESSED_TENSORS = Reference(
    decode=lambda tensors: decode_compressed_tensors(
        tensors["weight_packed"], tensors["weight_scale"], _one(tensors["weight_global_scale"])
    ),
    encoders={
        "max": partial(_encode_modelopt_as_ct, sweep=False),
        "mse": partial(_encode_modelopt_as_ct, sweep=True),
        "compressed-tensors": _encode_ct,
    },
    steps=_ct_steps,
    input_scale=lambda amax: np.array([global_scale(np.float32(amax))], np.float32),
)
