"""INT4 -> NVFP4 and MXFP4 without a BF16 tensor in between: the hot loop looks bytes up and counts.

Inside a group every weight is one of 16 values q * scale, so a block's fate depends only on the group's scale and the
largest |q| in the block (or on the block scale that a sweep chose). Each such pair gets a table from source byte to
target byte, made once by the arithmetic of `bf16_blocks`. Errors need no arithmetic in the loop either: a histogram of
|q| per table is kept as integers, and the sums are taken from it at the end.
"""

import numpy as np

from halfbyte.numerics.cpu.bf16_blocks import (
    MXFP4_QUARK,
    NVFP4_GIVEN,
    block_scale,
    decode_scale_of,
)
from halfbyte.numerics.cpu.jit import kernel
from halfbyte.numerics.cpu.rows import ERROR, MAGNITUDE, MAX_ERROR, SATURATED, SIGNAL
from halfbyte.numerics.cpu.scalars import F, bf16_bits, bf16_rounded, bf16_value, e2m1_code_of, e2m1_value

KEYS = 128  # a table's key within its scale: the largest |q| (0..8), or a given E4M3 code
MAGNITUDES = 8  # |q| of 1..8


def _counter_table():
    """For each byte, the counts of |q| = 1..8 among its two nibbles, in eight 8-bit fields of one word."""
    table = np.zeros(256, np.uint64)
    for byte in range(256):
        for nibble in (byte & 15, byte >> 4):
            magnitude = abs(nibble - 8)
            if magnitude:
                table[byte] += np.uint64(1) << np.uint64(8 * (magnitude - 1))
    return table


COUNTS = _counter_table()


@kernel
def count_magnitudes(source, counts):
    """Counts of |q| = 1..8 of each block of a row, packed in one word; blocks of at most 255."""
    half = source.size // counts.size
    for b in range(counts.size):
        word = np.uint64(0)
        for i in range(b * half, (b + 1) * half):
            word += COUNTS[source[i]]
        counts[b] = word


@kernel
def largest_magnitude(counts):
    """Largest |q| of a block: the number of the highest field that is not empty."""
    largest = 0
    for m in range(MAGNITUDES):
        largest += np.int64(counts >= np.uint64(1) << np.uint64(8 * m))
    return largest


@kernel
def number_scales(scale):
    """Give each distinct BF16 scale of the rows a number: (pattern -> number, number -> pattern)."""
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
    quotient = abs(weight) / factor
    value = e2m1_value(quotient)
    kept = value > F(0) if rule == MXFP4_QUARK else quotient > F(0)
    negative = weight < F(0) and kept
    return e2m1_code_of(value) | np.uint8(8 if negative else 0)


@kernel
def _make_table(scale, factor, rule, table):
    nibbles = np.empty(16, np.uint8)
    for u in range(16):
        nibbles[u] = _nibble(u - 8, scale, factor, rule)
    for byte in range(256):
        table[byte] = nibbles[byte & 15] | np.uint8(nibbles[byte >> 4] << np.uint8(4))


@kernel
def _number_pairs(number, scale, group, block, out_scale, slots):
    """Give each pair of source scale and given block scale a slot; returns how many there are."""
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
            quotient = weight / factor[slot]
            error = abs(weight - e2m1_value(quotient) * factor[slot])
            stats[SIGNAL] += count * (np.float64(weight) * np.float64(weight))
            stats[ERROR] += count * (np.float64(error) * np.float64(error))
            stats[MAX_ERROR] = max(stats[MAX_ERROR], np.float64(error))
            stats[SATURATED] += count * np.int64(quotient > F(6))


@kernel
def _look_up(source, slot, tables, target):
    half = source.size // slot.size
    for b in range(slot.size):
        table = tables[slot[b]]
        for i in range(b * half, (b + 1) * half):
            target[i] = table[source[i]]


@kernel
def _add_counts(counts, slot, histogram):
    for b in range(slot.size):
        mine = histogram[slot[b]]
        for m in range(MAGNITUDES):
            mine[m] += np.int64((counts[b] >> np.uint64(8 * m)) & np.uint64(255))


@kernel
def recode_rows(packed, scale, group, rule, block, tensor_scale, out, out_scale, stats):
    """Recode INT4 rows; `out_scale` is read for NVFP4_GIVEN and written otherwise. `stats` is one record."""
    number, patterns = number_scales(scale)
    slots = np.full((patterns.size, KEYS), -1, np.int32)
    if rule == NVFP4_GIVEN:
        size = _number_pairs(number, scale, group, block, out_scale, slots)
    else:
        size = patterns.size * (MAGNITUDES + 1)
        for mine in range(patterns.size):
            for key in range(MAGNITUDES + 1):
                slots[mine, key] = mine * (MAGNITUDES + 1) + key
    owner = np.full(size, -1, np.int32)  # -1: the table has not been needed yet
    byte = np.empty(size, np.uint8)
    factor = np.empty(size, np.float32)
    tables = np.empty((size, 256), np.uint8)
    histogram = np.zeros((size, MAGNITUDES), np.int64)
    per_group = group // block
    counts = np.empty(out_scale.shape[1], np.uint64)
    slot = np.empty(out_scale.shape[1], np.uint32)
    for r in range(packed.shape[0]):
        count_magnitudes(packed[r], counts)
        for g in range(scale.shape[1]):
            mine = number[scale[r, g]]
            for b in range(g * per_group, (g + 1) * per_group):
                key = np.int64(out_scale[r, b]) if rule == NVFP4_GIVEN else largest_magnitude(counts[b])
                s = slots[mine, key]
                slot[b] = s
                if owner[s] < 0:
                    step = bf16_value(patterns[mine])
                    owner[s] = mine
                    byte[s] = key
                    if rule != NVFP4_GIVEN:
                        byte[s] = block_scale(rule, abs(bf16_rounded(F(key) * step)), tensor_scale)
                    factor[s] = decode_scale_of(rule, byte[s], tensor_scale)
                    _make_table(step, factor[s], rule, tables[s])
                out_scale[r, b] = byte[s]
        _look_up(packed[r], slot, tables, out[r])
        _add_counts(counts, slot, histogram)
    _statistics(patterns, owner, factor, histogram, stats)


@kernel
def amax_bits(packed, scale):
    """Largest BF16 magnitude pattern that the rows decode to; at or above 0x7F80 it is not finite."""
    top = np.uint16(0)
    half = packed.shape[1] // scale.shape[1]
    for r in range(packed.shape[0]):
        for g in range(scale.shape[1]):
            step = bf16_value(scale[r, g] & MAGNITUDE)
            if bf16_bits(F(MAGNITUDES) * step) <= top:
                continue  # even |q| = 8 would not be larger: so it is for nearly every group
            counts = np.uint64(0)
            for i in range(g * half, (g + 1) * half):
                counts += COUNTS[packed[r, i]]
            top = max(top, bf16_bits(F(largest_magnitude(counts)) * step))
    return top
