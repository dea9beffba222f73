"""BF16 -> NVFP4 and MXFP4. Each row is processed by a few short loops that LLVM vectorizes."""

import numpy as np

from halfbyte.formats.cpu.kernels import rows
from halfbyte.formats.cpu.kernels.jit import kernel
from halfbyte.formats.cpu.kernels.scalars import (
    TINY,
    F,
    U,
    bf16_bits,
    bf16_value,
    e2m1_code_of,
    e2m1_value,
    e8m0_byte,
    e8m0_value,
    nvfp4_block_scale,
    nvfp4_ct_block_scale,
)
from halfbyte.formats.reference.floats import E4M3_VALUES

# Scale rules; NVFP4_GIVEN uses existing scales (chosen by the sweep).
NVFP4_MAX, NVFP4_GIVEN, NVFP4_CT, MXFP4_QUARK, MXFP4_CT = 0, 1, 2, 3, 4

_E4M3 = E4M3_VALUES.copy()
_E2M1 = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_E2M1_MODELOPT = _E2M1 + np.float32(0)  # its table has no negative zero
_CODE = np.uint8(15)


@kernel
def block_scale(rule, amax, tensor_scale):
    """Return the scale byte of a block with this amax."""
    if rule == NVFP4_MAX:
        return nvfp4_block_scale(amax, tensor_scale)
    if rule == NVFP4_CT:
        return nvfp4_ct_block_scale(amax, tensor_scale)
    return e8m0_byte(amax)


@kernel
def decode_scale_of(rule, byte, tensor_scale):
    """Return the FP32 factor of a block: weights are divided by it and codes multiplied with it."""
    if rule <= NVFP4_GIVEN:
        return _E4M3[byte] * tensor_scale
    if rule == NVFP4_CT:
        return _E4M3[byte] / tensor_scale
    return e8m0_value(byte)


@kernel
def _quantize_row(row, decode_scale, rule, codes, error):
    """Compute the codes and absolute errors of a row; `decode_scale` has one factor per 16 columns."""
    only_if_code = np.uint8(
        rule == MXFP4_QUARK
    )  # the other rules keep the sign of values that round to 0, but not of -0.0
    for chunk in range(decode_scale.size):
        scale = decode_scale[chunk]
        divisor = max(scale, TINY)
        for j in range(16):  # a constant, so that this loop becomes one vector
            i = chunk * 16 + j
            bits = U(row[i])
            magnitude = bf16_value(bits & U(0x7FFF))
            quotient = magnitude / divisor
            value = e2m1_value(quotient)
            signed = np.uint8(value > F(0)) | (np.uint8(quotient > F(0)) & ~only_if_code)
            sign = np.uint8(bits >> U(12)) & np.uint8(signed << np.uint8(3))
            clipped = np.uint8(np.uint8(quotient > F(6)) << np.uint8(4))  # a fifth bit, counted in _pack
            codes[i] = e2m1_code_of(value) | sign | clipped
            error[i] = abs(magnitude - value * scale)


@kernel
def _pack(codes, packed):
    """Pack two codes per byte, even column low; return the number of clipped codes."""
    clipped = np.int64(0)
    for i in range(packed.size):
        low, high = codes[2 * i], codes[2 * i + 1]
        packed[i] = (low & _CODE) | np.uint8(high << np.uint8(4))
    for i in range(codes.size):
        clipped += np.int64(codes[i] >> np.uint8(4))
    return clipped


@kernel
def encode_rows(weight, rule, block, tensor_scale, packed, scale, stats):
    """Encode finite BF16 rows; `scale` is read for NVFP4_GIVEN and written otherwise."""
    n, k = weight.shape
    amax = np.empty(k // block, np.uint16)
    decode_scale = np.empty(k // 16, np.float32)
    chunks = block // 16
    codes = np.empty(k, np.uint8)
    error = np.empty(k, np.float32)
    scratch_bits = np.empty(k // 2, np.uint16)
    scratch = np.empty(k // 2 + 1, np.float64)
    for r in range(n):
        if rule != NVFP4_GIVEN:
            rows.block_amax_bits(weight[r], block, scratch_bits, amax)
            for b in range(amax.size):
                scale[r, b] = block_scale(rule, bf16_value(amax[b]), tensor_scale)
        for b in range(k // block):
            decode_scale[b * chunks : (b + 1) * chunks] = decode_scale_of(rule, scale[r, b], tensor_scale)
        _quantize_row(weight[r], decode_scale, rule, codes, error)
        rows.write_stats(weight[r], error, _pack(codes, packed[r]), scratch, stats[r])


@kernel
def decode_rows(packed, scale, rule, block, tensor_scale, out):
    """E2M1 codes times their block's factor, rounded to BF16."""
    values = _E2M1_MODELOPT if rule <= NVFP4_GIVEN else _E2M1
    chunks = block // 16
    codes = np.empty(out.shape[1], np.uint8)
    for r in range(packed.shape[0]):
        source, target = packed[r], out[r]
        for i in range(source.size):
            byte = source[i]
            codes[2 * i] = byte & _CODE
            codes[2 * i + 1] = byte >> np.uint8(4)
        for chunk in range(target.size // 16):
            factor = decode_scale_of(rule, scale[r, chunk // chunks], tensor_scale)
            for j in range(16):
                target[chunk * 16 + j] = bf16_bits(values[codes[chunk * 16 + j]] * factor)
