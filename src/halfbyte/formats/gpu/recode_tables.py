"""The tables of `recode_int4`: the result for each kind of block an expert can have.

An entry is an int64: the scale byte in its upper half, and in its lower half eight nibbles, the code of |q| = 8 - c in
nibble 2 c (2 (c - 4) + 1 from c = 4), whose upper bit marks clipped codes.

Why 16 classes of exponents suffice. NVFP4: let amax have the exponent G. From a scale exponent of G - 13, block scales
are normal E4M3 numbers for any |q|, and each further exponent adds 8 to the byte. Up to G - 28 the byte is the smallest
one and all codes are 0. Given block scales: only the exponent of scale / (block scale x tensor scale) matters; from
2^-6 down all codes are 0, from 2^9 up all are 7. MXFP4 does not depend on amax: its bytes are clamped only for the
smallest and the largest exponents, which have their own classes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.scalars import (
    INTERPRETED,
    MXFP4_CT,
    NVFP4_CT,
    NVFP4_GIVEN,
    bf16_rounded,
    bf16_value,
    bits_of,
    block_scale,
    decode_factor,
    divisor_of,
    e2m1_code,
    f32_of,
    is_ordinary,
)

CLASSES = tl.constexpr(16)
_CELLS = 9  # the largest |q| of a block, 8..0; or the 8 mantissas of a given block scale
_ENTRIES = 16 * _CELLS * 128


@triton.jit
def table_base(amax, tensor_scale, RULE: tl.constexpr):
    """Return the exponent of class 0, or -1 if the expert is outside the tables' range."""
    if RULE > NVFP4_CT:
        return tl.full((), 0, tl.int32)
    else:
        base = (bits_of(tl.where(amax == 0.0, 6.0, amax)) >> 23) - 28
        if RULE == NVFP4_GIVEN:
            base = (bits_of(tensor_scale) >> 23) - 6
        return tl.where(is_ordinary(amax), base, -1)


@triton.jit
def table_class(exponent, base, RULE: tl.constexpr):
    """Class 0..15 of an exponent."""
    if RULE <= NVFP4_CT:
        return tl.minimum(tl.maximum(exponent - base, 0), CLASSES - 1)
    else:
        return tl.where(exponent < 7, exponent, tl.where(exponent < 248, 7, exponent - 240))  # noqa: PLR2004


@triton.jit
def exponents_above(exponent, base, RULE: tl.constexpr):
    """Return the offset of the scale byte for a class that covers several exponents."""
    if RULE <= NVFP4_CT:
        return tl.maximum(exponent - base - (CLASSES - 1), 0) * 8
    else:
        return tl.where((exponent >= 7) & (exponent < 248), exponent - 7, 0)  # noqa: PLR2004 - as in table_class


@triton.jit
def _make(amax_ptr, tensor_scale_ptr, table_ptr, RULE: tl.constexpr, ENTRIES: tl.constexpr, SIZE: tl.constexpr):
    expert = tl.program_id(1)
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tensor_scale = tl.load(tensor_scale_ptr + expert)
    base = table_base(tl.load(amax_ptr + expert), tensor_scale, RULE)
    if base < 0:
        return
    mantissa, cell = index & 127, index >> 7
    if RULE == NVFP4_GIVEN:
        # The block scale is 1.0 to 1.875, and the exponent of the step is a class away from it.
        given = f32_of((127 << 23) | ((cell & 7) << 20))
        step = bf16_value((((cell >> 3) + base) << 7) | mantissa)
        byte = cell & 0
        factor = given * tensor_scale
    else:
        row = cell // 9
        exponent = row + base
        if RULE > NVFP4_CT:
            exponent = tl.where(row < 8, row, row + 240)  # noqa: PLR2004 - the inverse of table_class
        step = bf16_value((tl.minimum(exponent, 254) << 7) | mantissa)
        most = (8 - cell % 9).to(tl.float32)
        byte = block_scale(bf16_rounded(most * step), tensor_scale, RULE)
        factor = decode_factor(byte, tensor_scale, RULE)
    codes = byte.to(tl.int64) << 32
    for entry in tl.static_range(8):
        quotient = tl.math.div_rn(bf16_rounded((8.0 - entry) * step), divisor_of(factor))
        nibble = e2m1_code(quotient) | tl.where(quotient > 6.0, 8, 0)  # noqa: PLR2004 - E2M1's largest
        codes |= nibble.to(tl.int64) << (8 * (entry % 4) + 4 * (entry // 4))
    tl.store(table_ptr + expert * ENTRIES + index, codes, mask=index < ENTRIES)


def make_tables(rule: int, amax: torch.Tensor, tensor_scale: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return all tables, and the stride between two experts' tables: 0 for MXFP4, where all experts share one."""
    rule, experts = (rule, amax.shape[0]) if rule <= NVFP4_CT.value else (MXFP4_CT.value, 1)
    tables = torch.empty((experts, _ENTRIES), dtype=torch.int64, device=amax.device)
    size = 32768 if INTERPRETED.value else 512  # the interpreter's time grows with the number of programs
    grid = (triton.cdiv(_ENTRIES, size), experts)
    _make[grid](amax, tensor_scale, tables, rule, _ENTRIES, size, enable_fp_fusion=False)
    return tables, _ENTRIES if rule <= NVFP4_CT.value else 0
