"""MSE sweep on BF16 sources. Candidates that cannot win are not evaluated:

- below the window, the saturated largest weight alone has more loss than a known candidate in total;
- above it, the weights that round to 0 do, or all weights round to 0 and the smallest such scale wins the tie.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.rows import MAGNITUDE
from halfbyte.formats.cpu.kernels.scalars import F, bf16_value, e2m1_value, e4m3_code
from halfbyte.formats.cpu.kernels.sweep import (
    CLOSE,
    CODE_RANGE,
    E4M3,
    FIRST,
    LAST,
    TILE,
    UNDECIDED,
    exact_below,
    keep_better,
    restart,
    unit_of,
)

_BLOCK = 16
_ABSENT = np.uint16(0x7FFF)


@kernel
def _lost_to_zero(targets, i, step):
    total = 0.0
    for j in range(_BLOCK):
        total += targets[j, i] * targets[j, i] if targets[j, i] < 0.25 * step else 0.0
    return total


@kernel
def _window(targets, i, amax, unit):
    """First and last candidate that can win for block i of a tile."""
    top = 0.0
    for j in range(_BLOCK):
        top = max(top, targets[j, i])
    guess = np.int64(e4m3_code(F(min(max(top / (6.0 * amax), 2.0**-9), 448.0))))
    step = E4M3[guess] * amax
    known = 0.0
    for j in range(_BLOCK):
        difference = targets[j, i] - np.float64(e2m1_value(F(targets[j, i] * unit) / F(step * unit))) * step
        known += difference * difference
    known *= CLOSE
    first = guess
    while first > FIRST:
        clipped = top - 6.0 * E4M3[first - 1] * amax
        if clipped > 0.0 and clipped * clipped > known:
            break
        first -= 1
    last = guess
    while last < LAST and top > 0.25 * E4M3[last] * amax and _lost_to_zero(targets, i, E4M3[last] * amax) <= known:
        last += 1
    return first, last


@kernel
def _add_losses(targets, targets32, steps, steps32, loss):
    for i in range(TILE):
        loss[i] = 0.0
    for j in range(_BLOCK):
        row, row32 = targets[j], targets32[j]
        for i in range(TILE):
            difference = row[i] - np.float64(e2m1_value(row32[i] / steps32[i])) * steps[i]
            loss[i] += difference * difference


@kernel
def _load_tile(weight, begin, size, unit, targets, targets32, smallest):
    for i in range(size):
        least = _ABSENT
        for j in range(_BLOCK):
            bits = weight[(begin + i) * _BLOCK + j] & MAGNITUDE
            targets[j, i] = CODE_RANGE * np.float64(bf16_value(bits))
            targets32[j, i] = F(targets[j, i] * unit)
            least = min(least, bits if bits > 0 else _ABSENT)
        smallest[i] = least


@kernel
def sweep_blocks(weight, amax_bits, scale):
    """Choose the scales of a flat run of BF16 blocks whose tensor group has this amax (not zero)."""
    amax = np.float64(bf16_value(amax_bits))
    unit = unit_of(amax)
    targets, targets32 = np.zeros((_BLOCK, TILE)), np.zeros((_BLOCK, TILE), np.float32)
    steps, steps32 = np.empty(TILE), np.empty(TILE, np.float32)
    loss, best, second = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    first, last = np.ones(TILE, np.int64), np.ones(TILE, np.int64)
    winner, code = np.empty(TILE, np.int64), np.empty(TILE, np.int64)
    smallest = np.empty(TILE, np.uint16)
    for begin in range(0, scale.size, TILE):
        size = min(TILE, scale.size - begin)
        _load_tile(weight, begin, size, unit, targets, targets32, smallest)
        widest = 0
        for i in range(size):
            first[i], last[i] = _window(targets, i, amax, unit) if smallest[i] != _ABSENT else (FIRST, FIRST)
            widest = max(widest, last[i] - first[i] + 1)
        restart(best, second, winner)
        for k in range(widest):
            for i in range(TILE):
                code[i] = min(first[i] + k, LAST)
                steps[i] = E4M3[code[i]] * amax
                steps32[i] = F(steps[i] * unit)
            _add_losses(targets, targets32, steps, steps32, loss)
            for i in range(TILE):
                loss[i] = loss[i] if first[i] + k <= last[i] else np.inf
            keep_better(loss, code, best, second, winner)
        for i in range(size):
            limit = best[i] * CLOSE
            decided = second[i] > limit or limit < exact_below(smallest[i], amax_bits, first[i])
            scale[begin + i] = winner[i] if decided else UNDECIDED
