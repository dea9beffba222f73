"""Bit-level scalars that every kernel inlines. All arithmetic is FP32 without contraction, as in the reference."""

import numpy as np

from halfbyte.formats.cpu.kernels.jit import inlined

F = np.float32
U = np.uint32

# Adding and subtracting 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer, ties to even, and vectorizes.
ROUND = F(12582912.0)
# Divisor used for factors that underflowed to 0: zeros stay zeros, and other weights saturate.
TINY = F(2.0**-149)


@inlined
def bf16_value(bits):
    """FP32 value of a BF16 bit pattern."""
    return U(U(bits) << U(16)).view(np.float32)


@inlined
def bf16_bits(value):
    """Nearest BF16 of a finite FP32 value (or an infinity), ties to even."""
    bits = F(value).view(np.uint32)
    return np.uint16((bits + U(0x7FFF) + ((bits >> U(16)) & U(1))) >> U(16))


@inlined
def bf16_rounded(value):
    """Round an FP32 value to BF16 and back."""
    return bf16_value(bf16_bits(value))


@inlined
def e4m3_code(value):
    """Nearest E4M3 code of 0 <= value <= 448, ties to even."""
    bits = F(value).view(np.uint32)
    normal = ((bits + U(0x7FFFF) + ((bits >> U(20)) & U(1))) >> U(20)) - U(120 << 3)
    subnormal = U((value * F(512) + ROUND) - ROUND)
    return np.uint8(normal if value >= F(0.015625) else subnormal)


@inlined
def e2m1_value(magnitude):
    """Nearest E2M1 value of a finite magnitude, ties to even, saturating at 6.

    E2M1 has steps of 0.5 below 2, 1 below 4 and 2 above. In each range, adding and subtracting the right constant
    rounds to that step, and even multiples are the even codes.
    """
    shift = F(6291456.0) if magnitude < F(2) else (ROUND if magnitude < F(4) else F(25165824.0))
    value = (magnitude + shift) - shift
    return F(6) if value > F(6) else value


@inlined
def e2m1_code_of(value):
    """Code of an exact E2M1 value: from 1, exponent and top mantissa bit increase with the code."""
    from_one = np.int32(F(value).view(np.uint32) >> U(22)) - np.int32(252)
    return np.uint8(np.int32(value * F(2)) if value < F(1) else from_one)


@inlined
def e8m0_byte(amax):
    """MXFP4's block scale from the block's amax; see reference.mxfp4.block_scale."""
    exponent = np.int32((F(amax).view(np.uint32) + U(0x200000)) >> U(23)) & np.int32(0xFF)
    if exponent == np.int32(255):
        return np.uint8(254)
    return np.uint8(max(exponent - np.int32(2), np.int32(0)))


@inlined
def e8m0_value(byte):
    """2^(byte - 127); byte 0 is FP32's subnormal 2^-127."""
    return U(U(byte) << U(23) if byte > 0 else U(0x400000)).view(np.float32)


@inlined
def nvfp4_block_scale(amax, decode_scale_2):
    """ModelOpt's max; see reference.nvfp4.block_scale_max."""
    scale = F(amax) / (F(6) * F(decode_scale_2))
    if scale == F(0):
        scale = F(1)
    return e4m3_code(min(max(scale, F(0.001953125)), F(448)))


@inlined
def nvfp4_ct_block_scale(amax, encode_scale_2):
    """compressed-tensors' block scale; see reference.nvfp4.encode_compressed_tensors."""
    code = e4m3_code(min(F(encode_scale_2) * bf16_rounded(F(amax) / F(6)), F(448)))
    return np.uint8(0x20) if code == 0 else code
