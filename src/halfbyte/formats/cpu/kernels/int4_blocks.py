"""INT4 -> NVFP4 and MXFP4 without an intermediate BF16 tensor, by table lookups.

Inside a group every weight is one of 16 values q * scale, so the result for a block depends only on the group's scale
and the largest |q| in the block (or on the block scale that a sweep chose). Each such pair gets a table from source
byte to target byte, built once with the arithmetic of `bf16_blocks`. Errors are computed at the end from integer
histograms of |q| per table.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.bf16_blocks import MXFP4_QUARK, NVFP4_GIVEN, block_scale, decode_scale_of
from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.nibbles import count_magnitudes, look_up
from halfbyte.formats.cpu.kernels.rows import (
    ERROR,
    MAGNITUDE,
    MAX_ERROR,
    SATURATED,
    SIGNAL,
)
from halfbyte.formats.cpu.kernels.scalars import (
    TINY,
    F,
    bf16_bits,
    bf16_rounded,
    bf16_value,
    e2m1_code_of,
    e2m1_value,
)

KEYS = 128  # a table's key within its scale: the largest |q| (0..8), or a given E4M3 code
MAGNITUDES = 8  # |q| of 1..8
_KINDS = MAGNITUDES + 1  # largest |q| of 0..8


@kernel
def largest_magnitude(counts):
    """Return the largest |q| of a block: the number of the highest non-empty field."""
    largest = 0
    for m in range(MAGNITUDES):
        largest += np.int64(counts >= np.uint64(1) << np.uint64(8 * m))
    return largest


@kernel
def number_scales(scale):
    """Number the distinct BF16 scales of the rows: (pattern -> number, number -> pattern)."""
    number = np.full(65536, -1, np.int32)
    pattern = np.empty(65536, np.uint16)
    count = 0
    for r in range(scale.shape[0]):
        for g in range(scale.shape[1]):
            bits = scale[r, g]
            if number[bits] < 0:
                number[bits] = count
                pattern[count] = bits
                count += 1
    return number, pattern[:count]


@kernel
def _nibble(q, scale, factor, rule):
    """Target code of one source code under the sign rule of the format."""
    weight = bf16_rounded(F(q) * scale)
    quotient = abs(weight) / max(factor, TINY)
    value = e2m1_value(quotient)
    kept = value > F(0) if rule == MXFP4_QUARK else quotient > F(0)
    negative = weight < F(0) and kept
    return e2m1_code_of(value) | np.uint8(8 if negative else 0)


@kernel
def _make_table(scale, factor, rule, table):
    for u in range(16):
        table[u] = _nibble(u - 8, scale, factor, rule)


@kernel
def _number_pairs(number, scale, group, block, out_scale, slots):
    """Assign a slot to each pair of source scale and given block scale; return the number of slots."""
    used = 0
    per_group = group // block
    for r in range(out_scale.shape[0]):
        for g in range(scale.shape[1]):
            mine = number[scale[r, g]]
            for b in range(g * per_group, (g + 1) * per_group):
                if slots[mine, out_scale[r, b]] < 0:
                    slots[mine, out_scale[r, b]] = used
                    used += 1
    return used


@kernel
def _statistics(patterns, owner, factor, histogram, stats):
    """Error statistics of the rows from the histogram of |q| per table."""
    stats[:] = 0
    for slot in range(owner.size):
        if owner[slot] < 0:
            continue
        scale = bf16_value(patterns[owner[slot]])
        for m in range(MAGNITUDES):
            count = histogram[slot, m]
            if count == 0:
                continue
            weight = abs(bf16_rounded(F(m + 1) * scale))
            quotient = weight / max(factor[slot], TINY)
            error = abs(weight - e2m1_value(quotient) * factor[slot])
            stats[SIGNAL] += count * (np.float64(weight) * np.float64(weight))
            stats[ERROR] += count * (np.float64(error) * np.float64(error))
            stats[MAX_ERROR] = max(stats[MAX_ERROR], np.float64(error))
            stats[SATURATED] += count * np.int64(quotient > F(6))


@kernel
def _add_counts(counts, slot, histogram):
    for b in range(slot.size):
        mine = histogram[slot[b]]
        for m in range(MAGNITUDES):
            mine[m] += np.int64((counts[b] >> np.uint64(8 * m)) & np.uint64(255))


@kernel
def _largest_magnitudes(counts, largest):
    """Compute the largest |q| of every block, in a separate loop that vectorizes."""
    for b in range(counts.size):
        largest[b] = largest_magnitude(counts[b])


@kernel
def _choose_slots(first, keys, per_group, slot):
    """The slot of each block: its group's first one and its key."""
    for g in range(first.size):
        for b in range(g * per_group, (g + 1) * per_group):
            slot[b] = first[g] + keys[b]


@kernel
def _find_slots(row, keys, per_group, slots, slot):
    """The slot of each block whose key is a given block scale."""
    for g in range(row.size):
        for b in range(g * per_group, (g + 1) * per_group):
            slot[b] = slots[row[g], keys[b]]


@kernel
def recode_rows(packed, scale, group, rule, block, tensor_scale, out, out_scale, stats):
    """Recode INT4 rows; `out_scale` is read for NVFP4_GIVEN and written otherwise. `stats` is one record."""
    given = rule == NVFP4_GIVEN
    number, patterns = number_scales(scale)
    slots = np.full((patterns.size if given else 1, KEYS), -1, np.int32)
    size = _number_pairs(number, scale, group, block, out_scale, slots) if given else patterns.size * _KINDS
    owner = np.full(size, -1, np.int32)  # -1: table not built yet
    byte = np.empty(size, np.uint8)
    factor = np.empty(size, np.float32)
    tables = np.empty((size, 16), np.uint8)
    histogram = np.zeros((size, MAGNITUDES), np.int64)
    per_group = group // block
    counts = np.empty(out_scale.shape[1], np.uint64)
    largest = np.empty(out_scale.shape[1], np.uint8)
    slot = np.empty(out_scale.shape[1], np.int32)
    mine = np.empty(scale.shape[1], np.int32)
    for r in range(packed.shape[0]):
        count_magnitudes(packed[r], counts)
        for g in range(mine.size):
            mine[g] = number[scale[r, g]]
        keys = out_scale[r] if given else largest
        if given:
            _find_slots(mine, keys, per_group, slots, slot)
        else:
            _largest_magnitudes(counts, largest)
            _choose_slots(mine * np.int32(_KINDS), keys, per_group, slot)
        for b in range(slot.size):
            s = slot[b]
            if owner[s] < 0:
                owner[s] = mine[b // per_group]
                step = bf16_value(patterns[owner[s]])
                byte[s] = keys[b] if given else block_scale(rule, abs(bf16_rounded(F(keys[b]) * step)), tensor_scale)
                factor[s] = decode_scale_of(rule, byte[s], tensor_scale)
                _make_table(step, factor[s], rule, tables[s])
            out_scale[r, b] = byte[s]
        look_up(packed[r], slot, tables, out[r])
        _add_counts(counts, slot, histogram)
    _statistics(patterns, owner, factor, histogram, stats)


@kernel
def amax_bits(packed, scale):
    """Largest BF16 magnitude pattern that the rows decode to; at or above 0x7F80 it is not finite."""
    top = np.uint16(0)
    counts = np.empty(1, np.uint64)
    half = packed.shape[1] // scale.shape[1]
    for r in range(packed.shape[0]):
        for g in range(scale.shape[1]):
            step = bf16_value(scale[r, g] & MAGNITUDE)
            if bf16_bits(F(MAGNITUDES) * step) <= top:
                continue  # even |q| = 8 would not be larger, as in nearly every group
            count_magnitudes(packed[r, g * half : (g + 1) * half], counts)
            top = max(top, bf16_bits(F(largest_magnitude(counts[0])) * step))
    return top
