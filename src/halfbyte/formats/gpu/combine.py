"""Add an expert's outputs to the sums of its tokens and compute their norms, in one pass over memory instead of six.

The arithmetic is that of transformers: the output times its weight in FP32, rounded to BF16, added in BF16. Non-finite
outputs give a non-finite norm and an undefined sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.scalars import bf16_bits, bf16_rounded, bf16_value

_WIDTH = 2048  # columns at a time


@triton.jit
def _combine(out_ptr, token_ptr, weight_ptr, total_ptr, norm_ptr, amax_ptr, width, SIZE: tl.constexpr):
    """Process one token. Tokens of an expert are unique, so no two programs write the same row."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(token_ptr + row)
    weight = tl.load(weight_ptr + row)
    squares = tl.zeros((SIZE,), tl.float64)
    largest = tl.zeros((SIZE,), tl.float32)
    for start in range(0, width, SIZE):
        column = start + tl.arange(0, SIZE)
        inside = column < width
        out = bf16_value(tl.load(out_ptr + row * width + column, mask=inside, other=0).to(tl.int32) & 0xFFFF)
        share = bf16_rounded(out * weight)
        at = total_ptr + token * width + column
        before = bf16_value(tl.load(at, mask=inside, other=0).to(tl.int32) & 0xFFFF)
        tl.store(at, bf16_bits(before + share).to(tl.int16), mask=inside)
        wide = out.to(tl.float64)
        squares += wide * wide
        largest = tl.maximum(largest, tl.abs(out))
    tl.store(norm_ptr + row, tl.sqrt(tl.sum(squares, axis=0)))
    tl.store(amax_ptr + row, tl.max(largest, axis=0))


def combine(
    total: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add BF16 outputs [n, D] to rows of BF16 sums [T, D]; return each output's norm, FP64, and amax, FP32.

    A norm is not finite if an output is not.
    """
    count, width = out.shape
    norms = torch.empty(count, dtype=torch.float64, device=out.device)
    amax = torch.empty(count, dtype=torch.float32, device=out.device)
    size = min(_WIDTH, triton.next_power_of_2(width))
    bits = out.contiguous().view(torch.int16), total.view(torch.int16)
    arguments = (bits[0], tokens, weights.contiguous(), bits[1], norms, amax, width)
    _combine[(count,)](*arguments, size, num_warps=8, enable_fp_fusion=False)
    return norms, amax
