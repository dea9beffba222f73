"""Bit-level functions that GPU kernels inline: the small floats of `reference.floats` in registers.

Kernels that use them are launched with `enable_fp_fusion=False`, because a fused multiply-add would skip a rounding
that the formats define. `/` is approximate in Triton, so every quotient is a `div_rn`. Bit patterns are int32 (or
uint32 for shifted words of eight codes), which behave the same when compiled and in Triton's interpreter.
"""

# ruff: noqa: PLR2004 - bit patterns and constants of the formats

import triton
import triton.language as tl
from triton import knobs

# Whether kernels run in Triton's interpreter, which does not support inline assembly.
INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))

# Scale rules, numbered as in `cpu.bf16_blocks`. NVFP4_GIVEN uses existing scales.
NVFP4_MAX = tl.constexpr(0)
NVFP4_GIVEN = tl.constexpr(1)
NVFP4_CT = tl.constexpr(2)
MXFP4_QUARK = tl.constexpr(3)
MXFP4_CT = tl.constexpr(4)


@triton.jit
def f32_of(bits):
    """FP32 value of a bit pattern."""
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def bits_of(value):
    """Bit pattern of an FP32 value, int32."""
    return value.to(tl.int32, bitcast=True)


@triton.jit
def bf16_value(bits):
    """FP32 value of a BF16 pattern in the low half of an int32."""
    return f32_of(bits << 16)


@triton.jit
def bf16_bits(value):
    """Nearest BF16 pattern of an FP32 value that is not NaN, ties to even."""
    bits = value.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int32)


@triton.jit
def bf16_rounded(value):
    """Round an FP32 value to BF16 and back."""
    bits = value.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def int4_value(nibble):
    """FP32 value of a stored INT4 code (0..15, for -8..7), without a slow conversion instruction."""
    return f32_of(nibble.to(tl.int32) | 0x4B000000) - 8388616.0  # 2^23 + code, less 2^23 + 8


@triton.jit
def e4m3_code(value):
    """Nearest E4M3 code of 0 <= value <= 448, ties to even."""
    bits = bits_of(value)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 960
    subnormal = bits_of(value * 512.0 + 12582912.0) & 15  # 1.5 * 2^23: adding it rounds to an integer
    return tl.where(value >= 0.015625, normal, subnormal)


@triton.jit
def e4m3_value(code):
    """FP32 value of an E4M3 code other than NaN: exponent and mantissa in FP32's positions, with the bias adjusted."""
    code = code.to(tl.int32)
    return f32_of(((code & 0x7F) << 20) | ((code & 0x80) << 24)) * 1.329227995784916e36  # 2^120


@triton.jit
def e2m1_code(magnitude):
    """Nearest E2M1 code (0..7) of a magnitude that is not NaN, ties to even, saturating at 6.

    E2M1 has steps of 0.5 below 2, 1 below 4 and 2 above. Adding the right constant rounds to that step and leaves the
    code in the low bits of the sum.
    """
    shift = tl.where(magnitude < 2.0, 6291456.0, tl.where(magnitude < 4.0, 12582914.0, 25165832.0))
    return bits_of(tl.minimum(magnitude, 6.0) + shift) & 7


@triton.jit
def e2m1_value(code):
    """FP32 magnitude of an E2M1 code 0..7."""
    return f32_of(code << 22) * 8.507059173023462e37  # 2^126


@triton.jit
def e8m0_byte(amax):
    """MXFP4's block scale from the block's amax; see reference.mxfp4.block_scale."""
    exponent = (bits_of(amax) + 0x200000) >> 23
    return tl.where(exponent >= 255, 254, tl.maximum(exponent - 2, 0))


@triton.jit
def e8m0_value(byte):
    """2^(byte - 127); byte 0 is FP32's subnormal 2^-127."""
    return f32_of(tl.where(byte > 0, byte << 23, 0x400000))


@triton.jit
def block_scale(amax, tensor_scale, RULE: tl.constexpr):
    """Scale byte of a block with this amax, int32; see reference.nvfp4 and reference.mxfp4."""
    if RULE == NVFP4_MAX:
        scale = tl.math.div_rn(amax, 6.0 * tensor_scale)  # the product is rounded first
        scale = tl.where(scale == 0.0, 1.0, scale)
        return e4m3_code(tl.minimum(tl.maximum(scale, 0.001953125), 448.0))
    elif RULE == NVFP4_CT:
        local = bf16_rounded(tl.math.div_rn(amax, 6.0))
        code = e4m3_code(tl.minimum(tensor_scale * local, 448.0))
        return tl.where(code == 0, 0x20, code)
    else:
        return e8m0_byte(amax)


@triton.jit
def decode_factor(byte, tensor_scale, RULE: tl.constexpr):
    """FP32 factor of a block: weights are divided by it and codes multiplied with it."""
    if RULE == NVFP4_CT:
        return tl.math.div_rn(e4m3_value(byte), tensor_scale)
    elif RULE <= NVFP4_GIVEN:
        return e4m3_value(byte) * tensor_scale
    else:
        return e8m0_value(byte)


@triton.jit
def divisor_of(factor):
    """Return the divisor: a factor that underflowed to 0 is replaced, because 0 / 0 would give NaN."""
    return f32_of(tl.maximum(bits_of(factor), 1))  # 2^-149: any nonzero weight saturates


@triton.jit
def is_ordinary(amax):
    """Whether an expert is far enough from FP32's limits that no factor is subnormal and no quotient underflows to 0.

    2^-80 to 2^19: then factors are above 2^-102, and 2^-133, the smallest BF16, over amax / 6 is above 2^-150.
    """
    return ((amax >= 8.271806125530277e-25) & (amax < 524288.0)) | (amax == 0.0)


@triton.jit
def quotient_of(magnitude, factor, reciprocal, STEPS: tl.constexpr):
    """Divide magnitude by factor, correctly rounded, using the correctly rounded reciprocal of the factor.

    Each step adds the exact remainder times the reciprocal. Two steps suffice for any FP32 magnitude, and one for a
    BF16 magnitude, which was verified for all pairs of mantissas. This holds far from FP32's limits.
    """
    if INTERPRETED:
        return tl.math.div_rn(magnitude, factor)  # the interpreter's fma rounds twice
    else:
        negative = 0.0 - factor  # per block, not per weight
        quotient = magnitude * reciprocal
        for _ in tl.static_range(STEPS):
            quotient = tl.fma(tl.fma(quotient, negative, magnitude), reciprocal, quotient)
        return quotient


@triton.jit
def error_unit(amax):
    """Power of two near a block's amax, the unit for squared errors to avoid overflow and underflow in FP32."""
    exponent = tl.minimum(tl.maximum(bits_of(amax) >> 23, 1), 253)
    return f32_of(exponent << 23), f32_of((254 - exponent) << 23)


@triton.jit
def sign_of(negative, quotient, code, RULE: tl.constexpr):
    """Bit 3 of a code: Quark never writes -0; the others keep the sign of values that round to 0, but not of -0.0."""
    if RULE == MXFP4_QUARK:
        return tl.where(negative & (code > 0), 8, 0)
    else:
        return tl.where(negative & (quotient > 0.0), 8, 0)
