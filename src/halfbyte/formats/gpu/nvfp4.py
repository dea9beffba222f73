"""Encode INT4 and BF16 to NVFP4, in ModelOpt's or compressed-tensors' arithmetic, or with given block scales."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from halfbyte.errors import UsageError
from halfbyte.formats.format import DeviceCodec
from halfbyte.formats.gpu import encode_bf16, encode_int4
from halfbyte.formats.gpu.blocks import (
    NVFP4_BLOCK,
    Blocks,
    check_blocks,
    check_shape,
    check_stack,
    global_scale,
    int4_group,
    stored_global_scale,
    tensor_scale,
)
from halfbyte.formats.gpu.decode import nvfp4_to_bf16
from halfbyte.formats.gpu.gptq import compensate, gptq_scale
from halfbyte.formats.gpu.scalars import NVFP4_CT, NVFP4_GIVEN, NVFP4_MAX
from halfbyte.formats.gpu.sweep import settle_bf16, settle_int4, sweep_bf16, sweep_int4

_METHODS = {"max": NVFP4_MAX.value, "compressed-tensors": NVFP4_CT.value}


def int4_to_nvfp4(
    packed: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor,
    *,
    method: str = "max",
    given: torch.Tensor | None = None,
    quality: bool = True,
) -> Blocks:
    """INT4, packed int32 [E, N, K / 8] and BF16 scales [E, N, K / group], to NVFP4 without intermediate BF16.

    `amax` FP32 [E] determines each expert's tensor scale; gate and up share the larger one. `given` block scales,
    U8 [E, N, K / 16], replace those of `max`.
    """
    int4_group(packed, scale)
    experts, n, words = packed.shape
    rule, factor, blocks = _choose((experts, n, 8 * words), amax, method, given)
    codes, sums = encode_int4.encode(packed, scale, rule, NVFP4_BLOCK, factor, blocks, amax, quality)
    return Blocks(codes, blocks, factor, sums)


def bf16_to_nvfp4(
    weight: torch.Tensor,
    amax: torch.Tensor,
    *,
    method: str = "max",
    given: torch.Tensor | None = None,
    quality: bool = True,
) -> Blocks:
    """Finite BF16 [E, N, K] to NVFP4; other arguments as in `int4_to_nvfp4`."""
    check_stack("weight", weight, torch.bfloat16)
    experts, n, k = weight.shape
    rule, factor, blocks = _choose((experts, n, k), amax, method, given)
    codes, sums = encode_bf16.encode(weight, rule, NVFP4_BLOCK, factor, blocks, amax, quality)
    return Blocks(codes, blocks, factor, sums)


def _choose(
    shape: tuple[int, int, int], amax: torch.Tensor, method: str, given: torch.Tensor | None
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return the rule, the tensor scale, and the given or newly allocated block scales."""
    experts, n, k = shape
    check_blocks(k, NVFP4_BLOCK)
    check_shape("amax", amax, (experts,), torch.float32)
    if method not in _METHODS or (given is not None and method != "max"):
        raise UsageError(f"no method '{method}'{' with given scales' if given is not None else ''}", fix="take max")
    if given is not None:
        check_shape("given", given, (experts, n, k // NVFP4_BLOCK), torch.uint8)
        return NVFP4_GIVEN.value, tensor_scale(amax), given
    blocks = torch.empty((experts, n, k // NVFP4_BLOCK), dtype=torch.uint8, device=amax.device)
    return _METHODS[method], (global_scale if method == "compressed-tensors" else tensor_scale)(amax), blocks


def _encode(weights: torch.Tensor | tuple[torch.Tensor, torch.Tensor], amax: torch.Tensor, method: str) -> Blocks:
    """Encode BF16 or INT4 with a method; "mse" decides close calls of its sweep on the host."""
    given = None
    if isinstance(weights, torch.Tensor):
        if method == "mse":
            swept = sweep_bf16(weights, amax)
            settle_bf16(swept, weights, amax)
            method, given = "max", swept.scale
        return bf16_to_nvfp4(weights, amax, method=method, given=given)
    if method == "mse":
        swept = sweep_int4(*weights, amax)
        settle_int4(swept, *weights, amax)
        method, given = "max", swept.scale
    return int4_to_nvfp4(*weights, amax, method=method, given=given)


def _decode_modelopt(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    scale = tensors["weight_scale"].view(torch.uint8)
    return nvfp4_to_bf16(tensors["weight"], scale, tensors["weight_scale_2"].reshape(-1))


def _decode_ct(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    scale, global_scales = tensors["weight_scale"].view(torch.uint8), tensors["weight_global_scale"].reshape(-1)
    return nvfp4_to_bf16(tensors["weight_packed"], scale, global_scales, reciprocal=True)


def _modelopt_scales(amax: torch.Tensor, method: str) -> torch.Tensor:
    return gptq_scale(amax) if method == "gptq" else tensor_scale(amax)


def _ct_scales(amax: torch.Tensor, method: str) -> torch.Tensor:
    return global_scale(amax) if method == "compressed-tensors" else stored_global_scale(amax)


MODELOPT = DeviceCodec(_decode_modelopt, _encode, _modelopt_scales, compensate)
COMPRESSED_TENSORS = DeviceCodec(_decode_ct, _encode, _ct_scales)
