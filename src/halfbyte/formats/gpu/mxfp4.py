"""Encode INT4 and BF16 to MXFP4, with both tensor namings."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu import encode_bf16, encode_int4
from halfbyte.formats.gpu.blocks import (
    MXFP4_BLOCK,
    Blocks,
    check_blocks,
    check_stack,
    int4_group,
)
from halfbyte.formats.gpu.decode import mxfp4_to_bf16
from halfbyte.formats.gpu.scalars import MXFP4_CT, MXFP4_QUARK


def int4_to_mxfp4(
    packed: torch.Tensor, scale: torch.Tensor, *, keep_negative_zero: bool = False, quality: bool = True
) -> Blocks:
    """INT4, packed int32 [E, N, K / 8] and BF16 scales [E, N, K / group], to MXFP4 without intermediate BF16."""
    int4_group(packed, scale)
    experts, n, words = packed.shape
    blocks, ones = _room((experts, n, 8 * words), packed.device)
    rule = _rule(keep_negative_zero)
    codes, sums = encode_int4.encode(packed, scale, rule, MXFP4_BLOCK, ones, blocks, ones, quality)
    return Blocks(codes, blocks, None, sums)


def bf16_to_mxfp4(weight: torch.Tensor, *, keep_negative_zero: bool = False, quality: bool = True) -> Blocks:
    """Finite BF16 [E, N, K] to MXFP4."""
    check_stack("weight", weight, torch.bfloat16)
    check_blocks(weight.shape[2], MXFP4_BLOCK)
    blocks, ones = _room((weight.shape[0], weight.shape[1], weight.shape[2]), weight.device)
    codes, sums = encode_bf16.encode(weight, _rule(keep_negative_zero), MXFP4_BLOCK, ones, blocks, ones, quality)
    return Blocks(codes, blocks, None, sums)


def _rule(keep_negative_zero: bool) -> int:
    """Return the rule: Quark never writes -0, compressed-tensors keeps the sign of negatives that round to 0."""
    return (MXFP4_CT if keep_negative_zero else MXFP4_QUARK).value


def _room(shape: tuple[int, int, int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate block scales, and a dummy tensor scale, which MXFP4 does not have."""
    experts, n, k = shape
    blocks = torch.empty((experts, n, k // MXFP4_BLOCK), dtype=torch.uint8, device=device)
    return blocks, torch.ones(experts, dtype=torch.float32, device=device)


def _codec(codes: str, *, keep_negative_zero: bool) -> DeviceCodec:
    def decode(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return mxfp4_to_bf16(tensors[codes], tensors["weight_scale"])

    def encode(weights: torch.Tensor | tuple[torch.Tensor, torch.Tensor], _amax: torch.Tensor, _method: str) -> Blocks:
        if isinstance(weights, torch.Tensor):
            return bf16_to_mxfp4(weights, keep_negative_zero=keep_negative_zero)
        return int4_to_mxfp4(*weights, keep_negative_zero=keep_negative_zero)

    return DeviceCodec(decode, encode)


QUARK = _codec("weight", keep_negative_zero=False)
COMPRESSED_TENSORS = _codec("weight_packed", keep_negative_zero=True)
