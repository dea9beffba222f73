"""ModelOpt's MSE sweep over the 126 positive E4M3 block scales of NVFP4, in exact arithmetic.

The loss of scale v is the sum over the block of (|w| - c * v * g / 2688)^2 with the nearest E2M1 value c, where g is
the tensor's amax. Multiplied by 2688^2, every term is a product of small integers and powers of two, so Python integers
represent it exactly and ties are exact. The smallest scale wins ties. (ModelOpt evaluates the same loss in FP32, where
rounding noise decides ties, and its CPU and GPU formulas disagree.)
"""

from __future__ import annotations

import numpy as np

from halfbyte.formats.reference import floats
from halfbyte.formats.reference.floats import BF16, F32, U8
from halfbyte.formats.reference.nvfp4 import BLOCK, CODE_RANGE

CANDIDATES = range(1, 127)  # E4M3 codes: positive, finite, ascending in value
_UNIT_EXPONENT = -133 - 9 - 1  # the finest product: smallest BF16 times smallest E4M3 times half


def _exact(value: float) -> int:
    """Return the value as an integer multiple of 2^-143, the unit in which all products of the loss are integers."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << -_UNIT_EXPONENT) // denominator


def exact_losses(block: F32, amax: float) -> list[int]:
    """2688^2 times the loss of each candidate, in units of 2^-286."""
    targets = [_exact(abs(float(w)) * float(CODE_RANGE)) for w in block]
    losses: list[int] = []
    for code in CANDIDATES:
        step = float(floats.E4M3_VALUES[code]) * amax
        grid = [_exact(float(c) * step) for c in floats.E2M1_VALUES]
        losses.append(sum(min((target - point) ** 2 for point in grid) for target in targets))
    return losses


def best_scale(block: F32, amax: float) -> int:
    """E4M3 code of the scale with the smallest exact loss; the smallest such code on ties (0x01 for a zero block)."""
    losses = exact_losses(block, amax)
    return CANDIDATES[losses.index(min(losses))]


def block_scale_mse(weight: BF16, amax: np.float32) -> U8:
    """Sweep every block of a tensor."""
    n, k = weight.shape
    blocks = floats.bf16_to_f32(weight).reshape(-1, BLOCK)
    chosen = [best_scale(block, float(amax) or 1.0) for block in blocks]
    return np.array(chosen, np.uint8).reshape(n, k // BLOCK)
