"""Round activations to FP4 and back in one pass, bit-identical to `formats.emulated_activations` in PyTorch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.errors import TensorError
from halfbyte.formats.gpu.blocks import MXFP4_BLOCK, NVFP4_BLOCK, check_blocks
from halfbyte.formats.gpu.scalars import (
    MXFP4_CT,
    NVFP4_MAX,
    bf16_bits,
    bits_of,
    block_scale,
    decode_factor,
    divisor_of,
    e2m1_code,
    e2m1_value,
    f32_of,
    is_ordinary,
    quotient_of,
)

_VALUES = 2048


@triton.jit
def _quotients(size, factor, tensor_scale, RULE: tl.constexpr, STEPS: tl.constexpr):
    """Divide magnitudes by their block's factor. IEEE division is slow for zeros, which are common after a ReLU."""
    if RULE == MXFP4_CT:
        return size * tl.math.div_rn(1.0, factor)  # a power of two: products are quotients
    else:
        if is_ordinary(tensor_scale * 2688.0):
            # Values above 6 factors saturate; clamp them, because very large ones would overflow.
            quotient = quotient_of(tl.minimum(size, 8.0 * factor), factor, tl.math.div_rn(1.0, factor), STEPS)
        else:
            quotient = tl.math.div_rn(size, divisor_of(factor))
        return quotient


@triton.jit
def _through_fp4(
    x_ptr,
    tensor_scale_ptr,
    out_ptr,
    blocks,
    RULE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    IS_BF16: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = (row < blocks)[:, None]
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    bits = tl.load(x_ptr + at, mask=inside, other=0).to(tl.int32)
    if IS_BF16:
        bits = bits << 16
    size = f32_of(bits & 0x7FFFFFFF)
    amax = f32_of(tl.max(bits & 0x7FFFFFFF, axis=1))
    tensor_scale = tl.load(tensor_scale_ptr)
    factor = decode_factor(block_scale(amax, tensor_scale, RULE), tensor_scale, RULE)[:, None]
    quotient = _quotients(size, factor, tensor_scale, RULE, 1 if IS_BF16 else 2)
    value = e2m1_value(e2m1_code(quotient)) * factor
    value = f32_of(bits_of(value) | (bits & (-2147483647 - 1)))  # a zero keeps its sign
    if IS_BF16:
        tl.store(out_ptr + at, bf16_bits(value).to(tl.int16), mask=inside)
    else:
        tl.store(out_ptr + at, bits_of(value), mask=inside)


def _launch(x: torch.Tensor, tensor_scale: torch.Tensor, rule: int, block: int) -> torch.Tensor:
    pattern = {torch.bfloat16: torch.int16, torch.float32: torch.int32}.get(x.dtype)
    if pattern is None or not x.is_contiguous():
        what = f"activations are {x.dtype}{'' if x.is_contiguous() else ', not contiguous'}"
        raise TensorError(what, where="a stack", fix="pass contiguous BF16 or FP32")
    check_blocks(x.shape[-1], block)
    out = torch.empty_like(x)
    rows = _VALUES // block
    grid = (triton.cdiv(x.numel() // block, rows),)
    arguments = (x.view(pattern), tensor_scale, out.view(pattern), x.numel() // block, rule, block, rows)
    if x.numel():
        _through_fp4[grid](*arguments, x.dtype == torch.bfloat16, enable_fp_fusion=False)
    return out


def nvfp4_activations(x: torch.Tensor, tensor_scale: torch.Tensor) -> torch.Tensor:
    """Round finite x [..., K] to NVFP4 and back, with a calibrated global scale (amax / 2688), FP32 []."""
    return _launch(x, tensor_scale, NVFP4_MAX.value, NVFP4_BLOCK)


def mxfp4_activations(x: torch.Tensor) -> torch.Tensor:
    """Round finite x [..., K] to MXFP4 and back, with Quark's `even` scales."""
    return _launch(x, torch.ones((), dtype=torch.float32, device=x.device), MXFP4_CT.value, MXFP4_BLOCK)
