"""MSE sweep on INT4 sources, where a block is fully described by its source scale and the counts of each |q|.

Blocks are sorted by source scale and largest |q|. For each such kind the losses of |q| = 1..8 are tabulated once, and
candidates that are worse than another one for every |q| are dropped, which leaves some 15 of 126. A block's loss is
then a weighted sum of eight numbers. The result is exact, not an approximation.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.int4_blocks import MAGNITUDES, largest_magnitude, number_scales
from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.nibbles import count_magnitudes
from halfbyte.formats.cpu.kernels.rows import MAGNITUDE
from halfbyte.formats.cpu.kernels.scalars import F, bf16_rounded, bf16_value, e2m1_value
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

_KINDS = MAGNITUDES + 1  # largest |q| of 0..8


@kernel
def _distances(step, amax, unit, distance):
    """|2688 w - c v g| of |q| = 1..8 for every candidate."""
    for m in range(MAGNITUDES):
        target = CODE_RANGE * np.float64(bf16_rounded(F(m + 1) * step))
        target32 = F(target * unit)
        for code in range(FIRST, LAST + 1):
            grid = E4M3[code] * amax
            value = np.float64(e2m1_value(target32 / F(grid * unit)))
            distance[m, code] = abs(target - value * grid)


@kernel
def _beaten(distance, largest, code, rival):
    """Whether the rival is at least as close for every |q| up to the largest (closer, if it is the larger scale)."""
    for m in range(largest):
        ours, theirs = distance[m, code], distance[m, rival]
        if theirs > ours or (theirs == ours and rival > code):
            return False
    return True


@kernel
def _window(step, largest, amax):
    """Return the candidate range: above the last that clips even |q| = 1, up to the first that rounds all to 0."""
    least = CODE_RANGE * np.float64(step)
    most = CODE_RANGE * np.float64(bf16_rounded(F(largest) * step))
    first, last = FIRST, FIRST
    while first < LAST and 6.0 * E4M3[first + 1] * amax <= least:
        first += 1
    while last < LAST and 0.25 * E4M3[last] * amax < most:
        last += 1
    return first, max(first, last)


@kernel
def _contestants(distance, largest, first, last, codes, losses):
    """Collect the candidates that no other dominates, ascending, with their losses per |q|; return their number."""
    count = 0
    for code in range(first, last + 1):
        beaten = False
        for rival in range(first, last + 1):
            if rival != code and _beaten(distance, largest, code, rival):
                beaten = True
                break
        if not beaten:
            codes[count] = code
            for m in range(MAGNITUDES):
                losses[count, m] = distance[m, code] * distance[m, code] if m < largest else 0.0
            count += 1
    return count


@kernel
def _weigh(times, losses, loss):
    l1, l2, l3, l4, l5, l6, l7, l8 = losses
    for i in range(TILE):
        small = (times[0, i] * l1 + times[1, i] * l2) + (times[2, i] * l3 + times[3, i] * l4)
        large = (times[4, i] * l5 + times[5, i] * l6) + (times[6, i] * l7 + times[7, i] * l8)
        loss[i] = small + large


@kernel
def _sort_blocks(packed, scale, group, number, kinds):
    """Count |q| in every block; return the blocks sorted by kind, their counts, and each kind's start."""
    blocks = packed.shape[1] // 8
    counts = np.empty(packed.shape[0] * blocks, np.uint64)
    per_group = group // 16
    kind = np.empty(counts.size, np.uint32)
    start = np.zeros(kinds + 1, np.int64)
    for r in range(packed.shape[0]):
        row = counts[r * blocks : (r + 1) * blocks]
        count_magnitudes(packed[r], row)
        for g in range(scale.shape[1]):
            bits = scale[r, g]
            mine = number[bits] * _KINDS
            for b in range(g * per_group, (g + 1) * per_group):
                kind[r * blocks + b] = mine + (largest_magnitude(row[b]) if bits & MAGNITUDE else 0)
                start[kind[r * blocks + b] + 1] += 1
    for k in range(kinds):
        start[k + 1] += start[k]
    following = start[:-1].copy()
    order = np.empty(counts.size, np.int64)
    in_order = np.empty(counts.size, np.uint64)
    for b in range(counts.size):
        place = following[kind[b]]
        order[place] = b
        in_order[place] = counts[b]
        following[kind[b]] = place + 1
    return order, in_order, start


@kernel
def _sweep_kind(order, counts, codes, losses, exact, chosen):
    """Sweep all blocks of one kind in tiles."""
    times = np.zeros((MAGNITUDES, TILE))
    loss, best, second = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    winner = np.empty(TILE, np.int64)
    code = np.empty(TILE, np.int64)
    for begin in range(0, order.size, TILE):
        size = min(TILE, order.size - begin)
        for m in range(MAGNITUDES):
            row = times[m]
            for i in range(size):
                row[i] = np.float64(np.int32((counts[begin + i] >> np.uint64(8 * m)) & np.uint64(255)))
        restart(best, second, winner)
        for c in range(codes.size):
            per_q = losses[c]
            _weigh(times, (per_q[0], per_q[1], per_q[2], per_q[3], per_q[4], per_q[5], per_q[6], per_q[7]), loss)
            code[:] = codes[c]
            keep_better(loss, code, best, second, winner)
        for i in range(size):
            limit = best[i] * CLOSE
            decided = second[i] > limit or limit < exact
            chosen[order[begin + i]] = winner[i] if decided else UNDECIDED


@kernel
def sweep_rows(packed, scale, group, amax_bits, out_scale):
    """Choose the block scales of INT4 rows whose tensor group has this amax (not zero)."""
    amax = np.float64(bf16_value(amax_bits))
    number, patterns = number_scales(scale)
    order, counts, start = _sort_blocks(packed, scale, group, number, patterns.size * _KINDS)
    chosen = out_scale.reshape(-1)
    distance = np.empty((MAGNITUDES, LAST + 1))
    codes = np.empty(LAST, np.int64)
    losses = np.empty((LAST, MAGNITUDES))
    for mine in range(patterns.size):
        bits = patterns[mine] & MAGNITUDE
        _distances(bf16_value(bits), amax, unit_of(amax), distance)
        for largest in range(_KINDS):
            kind = mine * _KINDS + largest
            blocks = order[start[kind] : start[kind + 1]]
            if blocks.size == 0:
                continue
            if largest == 0:
                for b in blocks:
                    chosen[b] = FIRST
                continue
            first, last = _window(bf16_value(bits), largest, amax)
            count = _contestants(distance, largest, first, last, codes, losses)
            exact = exact_below(bits, amax_bits, codes[0])
            _sweep_kind(blocks, counts[start[kind] : start[kind + 1]], codes[:count], losses, exact, chosen)
