"""FP8 E4M3: decode 128x128 blocks and per-row scales, encode per row."""

import numpy as np

from halfbyte.formats.cpu.kernels import rows
from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.scalars import (
    F,
    U,
    bf16_bits,
    bf16_rounded,
    bf16_value,
    e4m3_code,
)
from halfbyte.formats.reference.floats import E4M3_VALUES

_E4M3 = E4M3_VALUES.copy()


@kernel
def decode_block_rows(code, scale_inv, block, out):
    """w = bf16(code * scale_inv); the rows start at a block boundary, the last blocks may be partial."""
    n, k = code.shape
    for r in range(n):
        source, target = code[r], out[r]
        for b in range(scale_inv.shape[1]):
            factor = scale_inv[r // block, b]
            for i in range(b * block, min((b + 1) * block, k)):
                target[i] = bf16_bits(_E4M3[source[i]] * factor)


@kernel
def decode_channel_rows(code, scale, out):
    """w = bf16(code * scale), one FP32 scale per row."""
    for r in range(code.shape[0]):
        source, target, factor = code[r], out[r], scale[r, 0]
        for i in range(source.size):
            target[i] = bf16_bits(_E4M3[source[i]] * factor)


@kernel
def encode_channel_rows(weight, code, scale, stats):
    """One BF16 scale per row; see reference.fp8.encode_channel."""
    n, k = weight.shape
    error = np.empty(k, np.float32)
    scratch = np.empty(k // 2 + 1, np.float64)
    for r in range(n):
        source, target = weight[r], code[r]
        amax = bf16_value(rows.amax_bits(weight[r : r + 1]))
        factor = bf16_rounded(amax / F(448))
        if factor == F(0):
            factor = F(0.0078125)
        scale[r, 0] = bf16_bits(factor)
        clipped = 0
        for i in range(k):
            magnitude = bf16_value(source[i] & rows.MAGNITUDE)
            quotient = bf16_rounded(magnitude / factor)
            target[i] = e4m3_code(min(quotient, F(448))) | np.uint8(np.uint8(U(source[i]) >> U(8)) & np.uint8(0x80))
            clipped += np.int64(quotient > F(448))
        for i in range(k):
            magnitude = bf16_value(source[i] & rows.MAGNITUDE)
            error[i] = abs(magnitude - bf16_rounded(_E4M3[target[i] & np.uint8(0x7F)] * factor))
        rows.write_stats(source, error, clipped, scratch, stats[r])
