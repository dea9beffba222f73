"""Encode INT4 and BF16 to MXFP4, with both tensor namings."""

from __future__ import annotations

import torch

from halfbyte.formats.gpu import encode_bf16, recode_int4
from halfbyte.formats.gpu.blocks import (
    MXFP4_BLOCK,
    Blocks,
    check_blocks,
    check_stack,
    int4_group,
)
from halfbyte.formats.gpu.device import MXFP4_CT, MXFP4_QUARK

SPELLINGS = {"mxfp4": MXFP4_QUARK.value, "mxfp4_ct": MXFP4_CT.value}


def int4_to_mxfp4(
    packed: torch.Tensor, scale: torch.Tensor, *, spelling: str = "mxfp4", quality: bool = True
) -> Blocks:
    """INT4, packed int32 [E, N, K / 8] and BF16 scales [E, N, K / group], to MXFP4 without intermediate BF16."""
    int4_group(packed, scale)
    experts, n, words = packed.shape
    blocks, ones = _room((experts, n, 8 * words), packed.device)
    rule = SPELLINGS[spelling]
    codes, sums = recode_int4.recode(packed, scale, rule, MXFP4_BLOCK, ones, blocks, ones, quality)
    return Blocks(codes, blocks, None, sums)


def bf16_to_mxfp4(weight: torch.Tensor, *, spelling: str = "mxfp4", quality: bool = True) -> Blocks:
    """Finite BF16 [E, N, K] to MXFP4."""
    check_stack("weight", weight, torch.bfloat16)
    check_blocks(weight.shape[2], MXFP4_BLOCK)
    blocks, ones = _room((weight.shape[0], weight.shape[1], weight.shape[2]), weight.device)
    codes, sums = encode_bf16.encode(weight, SPELLINGS[spelling], MXFP4_BLOCK, ones, blocks, ones, quality)
    return Blocks(codes, blocks, None, sums)


def _room(shape: tuple[int, int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate block scales, and a dummy tensor scale, which MXFP4 does not have."""
    experts, n, k = shape
    blocks = torch.empty((experts, n, k // MXFP4_BLOCK), dtype=torch.uint8, device=device)
    return blocks, torch.ones(experts, dtype=torch.float32, device=device)
