"""Largest magnitude of each expert.

For INT4, mostly the scales are read: a group cannot exceed eight times its scale, so once a large weight is known, only
groups that could be larger are read. The groups with the largest scales are read first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.blocks import check_stack, int4_group
from halfbyte.formats.gpu.scalars import bf16_bits, bf16_value

_ROWS = 2048
_FIRST_LOOK = 7.5  # eighths: groups with a scale this close to the largest are read first


@triton.jit
def _amax_bf16(weight_ptr, top_ptr, size, SIZE: tl.constexpr):
    expert = tl.program_id(1)
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    bits = tl.load(weight_ptr + expert.to(tl.int64) * size + at, mask=at < size, other=0)
    tl.atomic_max(top_ptr + expert, tl.max(bits.to(tl.int32) & 0x7FFF, axis=0))


@triton.jit
def _amax_int4(packed_ptr, step_ptr, floor_ptr, top_ptr, groups, WORDS: tl.constexpr, ROWS: tl.constexpr):
    """Raise `top` to the largest magnitude of the groups that could exceed the expert's floor."""
    expert = tl.program_id(1)
    group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = expert.to(tl.int64) * groups
    step = bf16_value(tl.load(step_ptr + first + group, mask=group < groups, other=0).to(tl.int32) & 0x7FFF)
    wanted = bf16_bits(8.0 * step) > tl.load(floor_ptr + expert)
    if tl.max(wanted.to(tl.int32), axis=0) > 0:
        at = group[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
        word = tl.load(packed_ptr + first * WORDS + at, mask=wanted[:, None], other=-2004318072)  # eight zeros
        largest = tl.zeros_like(word)
        for j in tl.static_range(8):
            largest = tl.maximum(largest, tl.abs(((word >> (4 * j)) & 15) - 8))
        most = tl.max(largest, axis=1).to(tl.float32)
        tl.atomic_max(top_ptr + expert, tl.max(bf16_bits(most * step), axis=0))


def bf16_amax(weight: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each expert of BF16 [E, N, K]: FP32 [E]. It is not finite if a weight is not."""
    check_stack("weight", weight, torch.bfloat16)
    return _value(_top_bits(weight))


def int4_amax(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each expert of INT4, packed int32 [E, N, K / 8], BF16 scales: FP32 [E]."""
    words = int4_group(packed, scale) // 8
    experts, groups = packed.shape[0], scale[0].numel()
    floor = (_value(_top_bits(scale)) * _FIRST_LOOK).to(torch.bfloat16).view(torch.int16).to(torch.int32)
    top = torch.zeros(experts, dtype=torch.int32, device=packed.device)
    grid = (triton.cdiv(groups, _ROWS), experts)
    for _ in range(2):
        arguments = (packed, scale.view(torch.int16), floor, top, groups, words, _ROWS)
        _amax_int4[grid](*arguments, enable_fp_fusion=False)
        floor = top.clone()
    return _value(top)


def _top_bits(weight: torch.Tensor) -> torch.Tensor:
    experts, size = weight.shape[0], weight[0].numel()
    top = torch.zeros(experts, dtype=torch.int32, device=weight.device)
    tile = 16384
    _amax_bf16[(triton.cdiv(size, tile), experts)](weight.view(torch.int16), top, size, tile, num_warps=8)
    return top


def _value(bits: torch.Tensor) -> torch.Tensor:
    return (bits << 16).view(torch.float32)
