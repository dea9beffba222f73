"""Reductions over one row as trees of halving loops, which vectorize and give the same result on every machine.

A float sum in a plain loop does not vectorize, and one that LLVM may reorder depends on the machine's vector width.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.scalars import F, bf16_value

MAGNITUDE = np.uint16(0x7FFF)

# Columns of the error statistics.
SIGNAL, ERROR, MAX_ERROR, SATURATED = 0, 1, 2, 3


@kernel
def block_amax_bits(row, block, scratch, amax):
    """Largest magnitude of each block; `block` is a power of two. BF16 magnitudes order like their bit patterns."""
    size = row.size // 2
    for i in range(size):
        scratch[i] = max(row[2 * i] & MAGNITUDE, row[2 * i + 1] & MAGNITUDE)
    while size > 2 * amax.size:
        size //= 2
        for i in range(size):
            scratch[i] = max(scratch[2 * i], scratch[2 * i + 1])
    for i in range(amax.size):
        amax[i] = max(scratch[2 * i], scratch[2 * i + 1])


@kernel
def _fold(scratch):
    """Sum by halves; an odd middle element is carried over."""
    size = scratch.size
    while size > 1:
        half = size // 2
        low, high = scratch[:half], scratch[size - half : size]  # slices: a computed index would not vectorize
        for i in range(half):
            low[i] += high[i]
        size -= half
    return scratch[0]


@kernel
def _sum_of_squares(values, scratch):
    """Sum of FP32 squares in FP64."""
    half = values.size // 2
    rest = values.size - half
    low, high = values[:half], values[rest:]
    scratch[half] = np.float64(values[half]) * np.float64(values[half])  # the middle element of an odd length
    for i in range(half):
        a, b = np.float64(low[i]), np.float64(high[i])
        scratch[i] = a * a + b * b
    return _fold(scratch[:rest])


@kernel
def _sum_of_squares_bf16(row, scratch):
    half = row.size // 2
    rest = row.size - half
    low, high = row[:half], row[rest:]
    middle = np.float64(bf16_value(row[half] & MAGNITUDE))
    scratch[half] = middle * middle
    for i in range(half):
        a, b = np.float64(bf16_value(low[i] & MAGNITUDE)), np.float64(bf16_value(high[i] & MAGNITUDE))
        scratch[i] = a * a + b * b
    return _fold(scratch[:rest])


@kernel
def write_stats(row, error, saturated, scratch, stats):
    """Fill one record of error statistics from a row of weights and their absolute errors.

    `scratch` holds half a row of FP64 and one more.
    """
    stats[SIGNAL] = _sum_of_squares_bf16(row, scratch)
    stats[ERROR] = _sum_of_squares(error, scratch)
    stats[MAX_ERROR] = _largest(error)
    stats[SATURATED] = saturated


@kernel
def _largest(values):
    """Largest of non-negative FP32 values, compared as integers."""
    bits = np.uint32(0)
    for i in range(values.size):
        bits = max(bits, F(values[i]).view(np.uint32))
    return np.uint32(bits).view(np.float32)


@kernel
def amax_bits(weight):
    """Largest BF16 magnitude pattern of a tensor; at or above 0x7F80 it contains an infinity or NaN."""
    top = np.uint16(0)
    for r in range(weight.shape[0]):
        row = weight[r]
        for i in range(row.size):
            top = max(top, np.uint16(row[i] & MAGNITUDE))
    return top
