"""Training with the weights that will be stored: experts pass through INT4 on Kimi's grid, gradients pass straight.

The arithmetic is halfbyte's own codec (`halfbyte.formats`, method "kimi") in PyTorch, and equal to it bit for bit, so
that what was trained is what is exported. It must not be compiled: compilers replace the division.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUP = 32
LARGEST_CODE = 7
SMALLEST_SCALE = 2.0**-133  # the smallest positive BF16
ZERO_GROUP_SCALE = 2.0**-7


def stored(weight: Tensor) -> Tensor:
    """Return weights as INT4 stores them: rounded to BF16, then to the grid of their group of 32."""
    values = weight.to(torch.bfloat16).float()
    groups = values.unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(dim=-1, keepdim=True)
    scale = (amax / LARGEST_CODE).to(torch.bfloat16).float().clamp(min=SMALLEST_SCALE)
    scale = torch.where(amax == 0, ZERO_GROUP_SCALE, scale)
    codes = (groups / scale).round().clamp(-LARGEST_CODE, LARGEST_CODE)
    return (codes * scale).flatten(-2).to(torch.bfloat16)


class _StraightThrough(torch.autograd.Function):
    """Forward: the stored weights. Backward: as if nothing had happened."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        """Round."""
        ctx.dtype = weight.dtype
        return stored(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Do not round."""
        return grad.to(ctx.dtype)


def straight_through(weight: Tensor) -> Tensor:
    """Return the stored weights, differentiable."""
    return _StraightThrough.apply(weight)
