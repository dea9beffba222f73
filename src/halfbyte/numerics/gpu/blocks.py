"""What encoders of FP4 blocks share: their result, the tensor scale of each expert, and the checks before a launch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from halfbyte.errors import TensorError
from halfbyte.numerics.gpu.quality import QualitySums

NVFP4_BLOCK, MXFP4_BLOCK = 16, 32
CODE_RANGE = 2688.0  # the largest code times the largest block scale
ZERO_TENSOR_AMAX = 6.0  # see reference.nvfp4
_STACK = 3  # [E, N, K]


class Blocks(NamedTuple):
    """A stack of linears in FP4: codes U8 [E, N, K / 2], scale bytes U8 [E, N, K / block], FP32 [E] where it has one.

    `tensor_scale` is what the kernels multiplied with (NVFP4 max) or divided by (compressed-tensors).
    """

    packed: torch.Tensor
    scale: torch.Tensor
    tensor_scale: torch.Tensor | None
    quality: QualitySums | None


def tensor_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_scale_2` of each expert: amax / 2688 in IEEE division (by a plain number PyTorch would multiply)."""
    range_of_codes = torch.full_like(amax, CODE_RANGE)
    return torch.where(amax == 0, ZERO_TENSOR_AMAX, amax) / range_of_codes


def stored_global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` where ModelOpt's arithmetic is stored in compressed-tensors' spelling: 2688 / amax."""
    return torch.full_like(amax, CODE_RANGE) / torch.where(amax == 0, ZERO_TENSOR_AMAX, amax)


def global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` in compressed-tensors' arithmetic: a reciprocal and a product, both rounded to BF16."""
    reciprocal = (torch.ones_like(amax) / amax).to(torch.bfloat16).float()
    scale = (reciprocal * CODE_RANGE).to(torch.bfloat16).float()
    return torch.where(torch.isfinite(scale), scale, 1.0)


def check_stack(what: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse what kernels would misread: another rank or dtype, or gaps between rows."""
    if tensor.dim() != _STACK or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.numel() == 0:
        found = f"{tensor.dtype} {list(tensor.shape)}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise TensorError(f"{what} is {found}", where="a stack", fix=f"pass contiguous {dtype} [E, N, K]")


def check_shape(what: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor that does not belong to the others."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        found = f"{tensor.dtype} {list(tensor.shape)}"
        raise TensorError(f"{what} is {found}", where="a stack", fix=f"pass contiguous {dtype} {list(shape)}")


def check_blocks(k: int, block: int) -> None:
    """Refuse partial blocks: engines do not load them."""
    if k % block:
        raise TensorError(f"K = {k} is not a multiple of the block of {block}", where="a stack", fix="keep it in BF16")


def int4_group(packed: torch.Tensor, scale: torch.Tensor) -> int:
    """Return the columns that share an INT4 scale."""
    check_stack("packed", packed, torch.int32)
    experts, n, words = packed.shape
    groups = {(experts, n, 8 * words // g): g for g in (32, 64, 128) if 8 * words % g == 0}
    if tuple(scale.shape) not in groups:
        what = f"scale {list(scale.shape)} does not fit packed {list(packed.shape)}"
        raise TensorError(what, where="a stack", fix="pass one scale for 32, 64 or 128 columns")
    check_shape("scale", scale, tuple(scale.shape), torch.bfloat16)
    return groups[tuple(scale.shape)]
