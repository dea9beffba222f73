"""Shared code of both MSE sweeps of NVFP4 block scales: the exact loss, and the selection of the best scale.

Losses are evaluated in FP64 on exact differences d = 2688 |w| - c v g: 33 bits at most, so every d is exact, and so is
the choice of c even from an FP32 quotient (unequal numbers of 13 and 15 bits are never one FP32 ulp apart). All terms
of a loss are multiples of one power of two; below 2^53 of them the sum is exact as well, and so are comparisons.
Blocks whose best candidates FP64 cannot distinguish get scale byte 0, which no candidate has, and the caller decides.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.reference.floats import E4M3_VALUES

UNDECIDED = 0
FIRST, LAST = 1, 126  # E4M3 codes of the candidates, ascending in value
# Blocks swept together. Inner loops always run over a whole tile, even if its last part is stale, because only loops of
# constant length vectorize.
TILE = 64

E4M3 = E4M3_VALUES.astype(np.float64)
CODE_RANGE = 2688.0
CLOSE = 1.0 + 2.0**-40  # far above the rounding of a sum of 16 squares


@kernel
def exponent_field(bits):
    """Exponent field of a BF16 pattern, subnormals counted as the smallest normals, whose spacing they share."""
    return max(np.int64(bits >> np.uint16(7)) & 0xFF, 1)


@kernel
def exact_below(smallest_bits, amax_bits, first):
    """Losses under this bound were summed without rounding.

    2688 |w| is a multiple of 2^7 times the spacing of the smallest weight, c v g of half the spacings of v and g.
    """
    unit_of_weights = exponent_field(smallest_bits) - 134 + 7
    unit_of_grid = -1 + (max(first >> 3, 1) - 10) + (exponent_field(amax_bits) - 134)
    return 2.0 ** (53 + 2 * min(unit_of_weights, unit_of_grid))


@kernel
def unit_of(amax):
    """Power of two that brings amax to [1, 2), so that FP32 holds every ratio that matters."""
    return 2.0 ** -((np.float64(amax).view(np.int64) >> 52) - 1023)


@kernel
def restart(best, second, winner):
    """Reset the state for a new tile."""
    for i in range(TILE):
        best[i] = np.inf
        second[i] = np.inf
        winner[i] = UNDECIDED


@kernel
def keep_better(loss, code, best, second, winner):
    """Update the best candidates; they come in ascending order, so with a strict comparison the smallest wins ties."""
    for i in range(TILE):
        better = loss[i] < best[i]
        runner_up = best[i] if better else loss[i]
        second[i] = runner_up if runner_up < second[i] else second[i]
        best[i] = loss[i] if better else best[i]
        winner[i] = code[i] if better else winner[i]
