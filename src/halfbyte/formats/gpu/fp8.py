"""FP8 in 128x128 blocks -> BF16 for a stack of experts; the last blocks may be partial."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu.blocks import check_shape, check_stack
from halfbyte.formats.gpu.scalars import bf16_bits, e4m3_value

BLOCK = 128
_ROWS, _COLUMNS = 16, 512


@triton.jit
def _decode(code_ptr, scale_ptr, out_ptr, n, k, BLOCK_: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    expert = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < n) & (column < k)
    at = (expert * n + row) * k + column
    per_row, per_expert = tl.cdiv(k, BLOCK_), tl.cdiv(n, BLOCK_) * tl.cdiv(k, BLOCK_)
    code = tl.load(code_ptr + at, mask=inside, other=0)
    scale_at = expert * per_expert + (row // BLOCK_) * per_row + column // BLOCK_
    scale = tl.load(scale_ptr + scale_at, mask=inside, other=0.0)
    tl.store(out_ptr + at, bf16_bits(e4m3_value(code) * scale).to(tl.int16), mask=inside)


def fp8_block_to_bf16(weight: torch.Tensor, scale_inv: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """E4M3 [E, N, K] and FP32 scales [E, ceil(N / 128), ceil(K / 128)] to BF16 [E, N, K], into `out` if given."""
    check_stack("weight", weight, torch.float8_e4m3fn)
    experts, n, k = weight.shape
    check_shape("scale_inv", scale_inv, (experts, triton.cdiv(n, BLOCK), triton.cdiv(k, BLOCK)), torch.float32)
    if out is None:
        out = torch.empty((experts, n, k), dtype=torch.bfloat16, device=weight.device)
    check_shape("out", out, (experts, n, k), torch.bfloat16)
    grid = (triton.cdiv(k, _COLUMNS), triton.cdiv(n, _ROWS), experts)
    arguments = (weight.view(torch.uint8), scale_inv, out.view(torch.int16), n, k, BLOCK, _ROWS, _COLUMNS)
    _decode[grid](*arguments, enable_fp_fusion=False)
    return out


def _channel_to_bf16(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return (tensors["weight"].view(torch.float8_e4m3fn).float() * tensors["weight_scale"].float()).to(torch.bfloat16)


BLOCK_CODEC = DeviceCodec(
    decode=lambda tensors: fp8_block_to_bf16(tensors["weight"].view(torch.float8_e4m3fn), tensors["weight_scale_inv"])
)
CHANNEL_CODEC = DeviceCodec(decode=_channel_to_bf16)
