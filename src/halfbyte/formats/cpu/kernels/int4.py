"""INT4 pack-quantized: decode to BF16, and encode on Kimi's or compressed-tensors' grid.

A row of words is read as bytes: on a little-endian machine byte i contains columns 2i (low nibble) and 2i + 1.
"""

import numpy as np

from halfbyte.formats.cpu.kernels import rows
from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.scalars import (
    ROUND,
    F,
    bf16_bits,
    bf16_rounded,
    bf16_value,
)

KIMI, COMPRESSED_TENSORS = 0, 1

_NIBBLE = np.uint8(15)
_CHUNK = 32  # the smallest group; only inner loops of a constant length vectorize


@kernel
def decode_rows(packed, scale, group, out):
    """w = bf16(q * scale) for rows whose K is a multiple of the group."""
    codes = np.empty(out.shape[1], np.int8)
    chunks = group // _CHUNK
    for r in range(packed.shape[0]):
        source, target = packed[r], out[r]
        for i in range(source.size):
            byte = source[i]
            codes[2 * i] = np.int8(byte & _NIBBLE) - np.int8(8)
            codes[2 * i + 1] = np.int8(byte >> np.uint8(4)) - np.int8(8)
        for chunk in range(target.size // _CHUNK):
            factor = bf16_value(scale[r, chunk // chunks])
            for j in range(_CHUNK):
                target[chunk * _CHUNK + j] = bf16_bits(F(codes[chunk * _CHUNK + j]) * factor)


@kernel
def _group_scale(amax, grid):
    if grid == KIMI:
        scale = bf16_rounded(amax / F(7))
        if scale == F(0):
            scale = F(0.0078125) if amax == F(0) else F(2.0**-133)
        return scale
    scale = bf16_rounded(amax / F(7.5))
    return F(0.0078125) if scale == F(0) else scale


@kernel
def encode_rows(weight, grid, group, packed, scale, stats):
    """Encode finite BF16 rows; see reference.int4 for the two grids."""
    n, k = weight.shape
    low, high = (F(-7), F(7)) if grid == KIMI else (F(-8), F(7))
    codes = np.empty(k, np.uint8)
    error = np.empty(k, np.float32)
    amax = np.empty(k // group, np.uint16)
    chunks = group // _CHUNK
    scratch_bits = np.empty(k // 2, np.uint16)
    scratch = np.empty(k // 2 + 1, np.float64)
    for r in range(n):
        source, target = weight[r], packed[r]
        rows.block_amax_bits(source, group, scratch_bits, amax)
        for g in range(amax.size):
            scale[r, g] = bf16_bits(_group_scale(bf16_value(amax[g]), grid))
        for chunk in range(k // _CHUNK):
            factor = bf16_value(scale[r, chunk // chunks])
            for j in range(_CHUNK):
                i = chunk * _CHUNK + j
                value = bf16_value(source[i])
                quotient = value / factor
                if grid == COMPRESSED_TENSORS:
                    quotient = bf16_rounded(quotient)
                bounded = min(max(quotient, low), high)
                q = (bounded + ROUND) - ROUND
                codes[i] = np.uint8(np.int32(q) + np.int32(8)) | np.uint8(
                    np.uint8(abs(quotient - bounded) > F(0.5)) << np.uint8(4)  # a fifth bit: clipped
                )
                error[i] = abs(value - bf16_rounded(q * factor))
        clipped = np.int64(0)
        for i in range(k):
            clipped += np.int64(codes[i] >> np.uint8(4))
        for i in range(target.size):
            target[i] = (codes[2 * i] & _NIBBLE) | np.uint8(codes[2 * i + 1] << np.uint8(4))
        rows.write_stats(source, error, clipped, scratch, stats[r])
