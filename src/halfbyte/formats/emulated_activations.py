"""Round activations to FP4 and back with PyTorch, on any device.

NVFP4 has a calibrated global scale and a dynamic E4M3 scale per 16 values, MXFP4 a power of two per 32 values. The
arithmetic equals that of the weight codecs bit for bit, except for the sign of zeros. Engine kernels multiply by
rounded reciprocals instead of dividing, and flush blocks below 2^-19 of the calibrated maximum to zero. Neither is
emulated.

In FP32 the results are not rounded to BF16, because FP4 kernels multiply codes and apply scales in FP32.
"""

from __future__ import annotations

import torch

_NVFP4_BLOCK, _MXFP4_BLOCK = 16, 32
_E2M1_MAX, _E4M3_MAX, _E4M3_TINY = 6.0, 448.0, 2.0**-9
_NO_EXPONENT = 0xFF  # beyond FP32's range; the largest scale is used
_HALF_STEPS, _WHOLE_STEPS = 2.0, 4.0  # below these, E2M1 has steps of 0.5 and of 1; above, of 2


def nvfp4(x: torch.Tensor, tensor_scale: torch.Tensor) -> torch.Tensor:
    """Round x [..., K] to NVFP4 and back, with a calibrated global scale (amax / 2688), FP32 []."""
    blocks = _in_blocks(x, _NVFP4_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = amax / (_E2M1_MAX * tensor_scale)  # the product is rounded first
    scale = torch.where(scale == 0, 1.0, scale).clamp_(_E4M3_TINY, _E4M3_MAX).to(torch.float8_e4m3fn).float()
    return _through_e2m1(blocks, scale * tensor_scale).flatten(-2).to(x.dtype)


def mxfp4(x: torch.Tensor) -> torch.Tensor:
    """Round x [..., K] to MXFP4 and back, with Quark's `even` scales."""
    blocks = _in_blocks(x, _MXFP4_BLOCK)
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32)
    exponent = (bits + 0x200000) >> 23  # rounds up from mantissa 1.75
    byte = torch.where(exponent == _NO_EXPONENT, 254, (exponent - 2).clamp_(min=0))
    scale = torch.where(byte == 0, 1 << 22, byte << 23).to(torch.int32).view(torch.float32)  # byte 0 is a subnormal
    return _through_e2m1(blocks, scale).flatten(-2).to(x.dtype)


def _in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _through_e2m1(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Round to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 times the scale, ties to even."""
    value = (blocks / scale).clamp_(-_E2M1_MAX, _E2M1_MAX)
    size = value.abs()
    step = torch.where(size < _HALF_STEPS, 0.5, torch.where(size < _WHOLE_STEPS, 1.0, 2.0))
    return value.div_(step).round_().mul_(step).mul_(scale)
