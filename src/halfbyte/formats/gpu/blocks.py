"""Shared code of the FP4 encoders: their result type, tensor scales per expert, and checks before a launch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from halfbyte.errors import TensorError
from halfbyte.formats.gpu.quality import QualitySums

NVFP4_BLOCK, MXFP4_BLOCK = 16, 32
CODE_RANGE = 2688.0  # the largest code times the largest block scale
ZERO_TENSOR_AMAX = 6.0  # see reference.nvfp4
_STACK = 3  # [E, N, K]


class Blocks(NamedTuple):
    """A stack of linears in FP4: codes U8 [E, N, K / 2], scale bytes U8 [E, N, K / block], and tensor scales FP32 [E].

    The kernels multiply with `tensor_scale` (NVFP4 max) or divide by it (compressed-tensors).
    """

    packed: torch.Tensor
    scale: torch.Tensor
    tensor_scale: torch.Tensor | None
    quality: QualitySums | None


def tensor_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_scale_2` of each expert: amax / 2688 in IEEE division (PyTorch multiplies by a scalar's reciprocal)."""
    range_of_codes = torch.full_like(amax, CODE_RANGE)
    return torch.where(amax == 0, ZERO_TENSOR_AMAX, amax) / range_of_codes


def stored_global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` of ModelOpt's arithmetic in the compressed-tensors format: 2688 / amax."""
    return torch.full_like(amax, CODE_RANGE) / torch.where(amax == 0, ZERO_TENSOR_AMAX, amax)


def global_scale(amax: torch.Tensor) -> torch.Tensor:
    """`weight_global_scale` in compressed-tensors' arithmetic: a reciprocal and a product, both rounded to BF16."""
    reciprocal = (torch.ones_like(amax) / amax).to(torch.bfloat16).float()
    scale = (reciprocal * CODE_RANGE).to(torch.bfloat16).float()
    return torch.where(torch.isfinite(scale), scale, 1.0)


def check_stack(what: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise an error for a wrong rank or dtype, or non-contiguous rows."""
    if tensor.dim() != _STACK or tensor.dtype != dtype or not tensor.is_contiguous() or tensor.numel() == 0:
        actual = f"{tensor.dtype} {list(tensor.shape)}{'' if tensor.is_contiguous() else ', not contiguous'}"
        raise TensorError(f"{what} is {actual}", where="a stack", fix=f"pass contiguous {dtype} [E, N, K]")


def check_shape(what: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error if a tensor does not have the expected shape."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        actual = f"{tensor.dtype} {list(tensor.shape)}"
        raise TensorError(f"{what} is {actual}", where="a stack", fix=f"pass contiguous {dtype} {list(shape)}")


def check_blocks(k: int, block: int) -> None:
    """Raise an error for partial blocks, which engines do not load."""
    if k % block:
        raise TensorError(f"K = {k} is not a multiple of {block}", where="a stack", fix="keep it in BF16")


def int4_group(packed: torch.Tensor, scale: torch.Tensor) -> int:
    """Return the INT4 group size."""
    check_stack("packed", packed, torch.int32)
    experts, n, words = packed.shape
    groups = {(experts, n, 8 * words // g): g for g in (32, 64, 128) if 8 * words % g == 0}
    if tuple(scale.shape) not in groups:
        what = f"scale {list(scale.shape)} does not fit packed {list(packed.shape)}"
        raise TensorError(what, where="a stack", fix="pass one scale for 32, 64 or 128 columns")
    check_shape("scale", scale, tuple(scale.shape), torch.bfloat16)
    return groups[tuple(scale.shape)]
