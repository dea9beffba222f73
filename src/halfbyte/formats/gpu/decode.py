"""Decode stacks of experts to BF16.

INT4, NVFP4 and MXFP4: a word of eight codes becomes four int32 of two weights each, 16 bytes per thread. FP8 in 128x128
blocks: the last blocks may be partial.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu.blocks import MXFP4_BLOCK, NVFP4_BLOCK, check_blocks, check_shape, check_stack, int4_group
from halfbyte.formats.gpu.scalars import (
    MXFP4_CT,
    NVFP4_CT,
    NVFP4_MAX,
    bf16_bits,
    bf16_value,
    decode_factor,
    e2m1_value,
    e4m3_value,
    f32_of,
    int4_value,
)

_WORDS = 1024
_INT4 = tl.constexpr(5)  # beside the rules of the FP4 formats
_INFINITY = tl.constexpr(0x7F800000)  # FP32 bits
_NAN = tl.constexpr(0xFFC0)  # BF16 bits, as x86 gives for 0 x infinity
_FP8_BLOCK = 128
_FP8_ROWS, _FP8_COLUMNS = 16, 512


@triton.jit
def _value(code, RULE: tl.constexpr):
    """FP32 value of a code 0..15; ModelOpt's table has no negative zero."""
    if RULE == _INT4:
        return int4_value(code)
    else:
        value = e2m1_value(code & 7)
        sign = (code & 8) << 28
        if RULE == NVFP4_MAX:
            sign = tl.where((code & 7) > 0, sign, 0)
        return f32_of(value.to(tl.int32, bitcast=True) | sign)


@triton.jit
def _decoded_bits(value):
    """BF16 bits of a decoded value. A GPU's NaN (0 x infinity) is 0x7FFFFFFF, which rounding would turn into -0."""
    magnitude = value.to(tl.uint32, bitcast=True) & 0x7FFFFFFF
    return tl.where(magnitude > _INFINITY, _NAN, bf16_bits(value))


@triton.jit
def _decode(
    packed_ptr,
    scale_ptr,
    tensor_scale_ptr,
    out_ptr,
    words,
    IN_BLOCK: tl.constexpr,
    RULE: tl.constexpr,
    SIZE: tl.constexpr,
):
    expert = tl.program_id(1)
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = index < words
    first = expert.to(tl.int64) * words
    word = tl.load(packed_ptr + first + index, mask=inside, other=0)
    scale = tl.load(scale_ptr + first // IN_BLOCK + index // IN_BLOCK, mask=inside, other=0).to(tl.int32)
    if RULE == _INT4:
        factor = bf16_value(scale & 0xFFFF)
    else:
        factor = decode_factor(scale, tl.load(tensor_scale_ptr + expert), RULE)
    pair = word[:, None] >> (8 * tl.arange(0, 4))[None, :]
    low = _decoded_bits(_value(pair & 15, RULE) * factor[:, None])
    high = _decoded_bits(_value((pair >> 4) & 15, RULE) * factor[:, None])
    at = index[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out_ptr + first * 4 + at, low | (high << 16), mask=inside[:, None])


def _decode_stack(
    packed: torch.Tensor, scale: torch.Tensor, tensor_scale: torch.Tensor, rule: int, out: torch.Tensor | None
) -> torch.Tensor:
    experts, n, words = packed.shape
    if out is None:
        out = torch.empty((experts, n, 8 * words), dtype=torch.bfloat16, device=packed.device)
    check_shape("out", out, (experts, n, 8 * words), torch.bfloat16)
    in_block = words // scale.shape[2]
    grid = (triton.cdiv(n * words, _WORDS), experts)
    arguments = (packed, scale, tensor_scale, out.view(torch.int32), n * words)
    _decode[grid](*arguments, in_block, rule, _WORDS, enable_fp_fusion=False)
    return out


def int4_to_bf16(packed: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """INT4, packed int32 [E, N, K / 8] and BF16 scales [E, N, K / group], to BF16 [E, N, K], into `out` if given."""
    int4_group(packed, scale)
    return _decode_stack(packed, scale.view(torch.int16), packed, _INT4.value, out)


def nvfp4_to_bf16(
    packed: torch.Tensor,
    scale: torch.Tensor,
    tensor_scale: torch.Tensor,
    *,
    reciprocal: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """NVFP4 to BF16. `tensor_scale` [E] is weight_scale_2, or the reciprocal weight_global_scale."""
    _check_fp4(packed, scale, NVFP4_BLOCK)
    check_shape("tensor_scale", tensor_scale, (packed.shape[0],), torch.float32)
    rule = NVFP4_CT if reciprocal else NVFP4_MAX
    return _decode_stack(packed.view(torch.int32), scale, tensor_scale, rule.value, out)


def mxfp4_to_bf16(packed: torch.Tensor, scale: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """MXFP4 to BF16, for both tensor namings."""
    _check_fp4(packed, scale, MXFP4_BLOCK)
    return _decode_stack(packed.view(torch.int32), scale, scale, MXFP4_CT.value, out)


def _check_fp4(packed: torch.Tensor, scale: torch.Tensor, block: int) -> None:
    check_stack("packed", packed, torch.uint8)
    experts, n, half = packed.shape
    check_blocks(2 * half, block)
    check_shape("scale", scale, (experts, n, 2 * half // block), torch.uint8)


@triton.jit
def _decode_fp8(code_ptr, scale_ptr, out_ptr, n, k, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    expert = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < n) & (column < k)
    at = (expert * n + row) * k + column
    per_row, per_expert = tl.cdiv(k, BLOCK), tl.cdiv(n, BLOCK) * tl.cdiv(k, BLOCK)
    code = tl.load(code_ptr + at, mask=inside, other=0)
    scale_at = expert * per_expert + (row // BLOCK) * per_row + column // BLOCK
    scale = tl.load(scale_ptr + scale_at, mask=inside, other=0.0)
    tl.store(out_ptr + at, bf16_bits(e4m3_value(code) * scale).to(tl.int16), mask=inside)


def fp8_block_to_bf16(weight: torch.Tensor, scale_inv: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """E4M3 [E, N, K] and FP32 scales [E, ceil(N / 128), ceil(K / 128)] to BF16 [E, N, K], into `out` if given."""
    check_stack("weight", weight, torch.float8_e4m3fn)
    experts, n, k = weight.shape
    check_shape(
        "scale_inv", scale_inv, (experts, triton.cdiv(n, _FP8_BLOCK), triton.cdiv(k, _FP8_BLOCK)), torch.float32
    )
    if out is None:
        out = torch.empty((experts, n, k), dtype=torch.bfloat16, device=weight.device)
    check_shape("out", out, (experts, n, k), torch.bfloat16)
    grid = (triton.cdiv(k, _FP8_COLUMNS), triton.cdiv(n, _FP8_ROWS), experts)
    arguments = (weight.view(torch.uint8), scale_inv, out.view(torch.int16), n, k, _FP8_BLOCK, _FP8_ROWS, _FP8_COLUMNS)
    _decode_fp8[grid](*arguments, enable_fp_fusion=False)
    return out


def _fp8_channel_to_bf16(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return (tensors["weight"].view(torch.float8_e4m3fn).float() * tensors["weight_scale"].float()).to(torch.bfloat16)


INT4 = DeviceCodec(decode=lambda tensors: int4_to_bf16(tensors["weight_packed"], tensors["weight_scale"]))
FP8_BLOCK = DeviceCodec(
    decode=lambda tensors: fp8_block_to_bf16(tensors["weight"].view(torch.float8_e4m3fn), tensors["weight_scale_inv"])
)
FP8_CHANNEL = DeviceCodec(decode=_fp8_channel_to_bf16)
