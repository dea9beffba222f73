"""INT4 -> NVFP4 and MXFP4 for a stack of experts by table lookup, without arithmetic on weights.

Inside a group every weight is one of 16 values, so a block depends only on its group's scale and its largest |q| (or on
the block scale that a sweep chose). Formats are floating point: a scale twice as large gives the same codes and the
next exponent, except at the limits of the range. A table of 16 exponents, the last one for all above, times 128
mantissas therefore covers every block of an expert.

An entry is an int64: the scale byte in its upper half, and in its lower half eight nibbles, the code of |q| = 8 - c in
nibble 2 c (2 (c - 4) + 1 from c = 4), whose upper bit marks clipped codes. Eight codes at a time are looked up by
permuting bytes.

Why 16 classes of exponents suffice. NVFP4: let amax have the exponent G. From a scale exponent of G - 13, block scales
are normal E4M3 numbers for any |q|, and each further exponent adds 8 to the byte. Up to G - 28 the byte is the smallest
one and all codes are 0. Given block scales: only the exponent of scale / (block scale x tensor scale) matters; from
2^-6 down all codes are 0, from 2^9 up all are 7. MXFP4 does not depend on amax: its bytes are clamped only for the
smallest and the largest exponents, which have their own classes.

Experts with weights near the limits of FP32 are outside the tables' range. They are encoded weight by weight, as in
`reference` (`_encode_slow`); no released model has any.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.blocks import SLOW_PROGRAMS, QualitySums, add_up, new_records, no_sums, write_record
from halfbyte.formats.gpu.scalars import (
    INTERPRETED,
    MXFP4_CT,
    MXFP4_QUARK,
    NVFP4_CT,
    NVFP4_GIVEN,
    bf16_rounded,
    bf16_value,
    bits_of,
    block_scale,
    decode_factor,
    divisor_of,
    e2m1_code,
    e2m1_value,
    e4m3_value,
    error_unit,
    f32_of,
    int4_value,
    is_ordinary,
    sign_of,
)

_CLASSES = tl.constexpr(16)
_CELLS = 9  # the largest |q| of a block, 8..0; or the 8 mantissas of a given block scale
_ENTRIES = 16 * _CELLS * 128
_ROWS, _WARPS = 256, 4
_SLOW_WORDS = 2  # of a block
_SLOW_ROWS = 512  # blocks at a time


@triton.jit
def _table_base(amax, tensor_scale, RULE: tl.constexpr):
    """Return the exponent of class 0, or -1 if the expert is outside the tables' range."""
    if RULE > NVFP4_CT:
        return tl.full((), 0, tl.int32)
    else:
        base = (bits_of(tl.where(amax == 0.0, 6.0, amax)) >> 23) - 28
        if RULE == NVFP4_GIVEN:
            base = (bits_of(tensor_scale) >> 23) - 6
        return tl.where(is_ordinary(amax), base, -1)


@triton.jit
def _table_class(exponent, base, RULE: tl.constexpr):
    """Class 0..15 of an exponent."""
    if RULE <= NVFP4_CT:
        return tl.minimum(tl.maximum(exponent - base, 0), _CLASSES - 1)
    else:
        return tl.where(exponent < 7, exponent, tl.where(exponent < 248, 7, exponent - 240))  # noqa: PLR2004


@triton.jit
def _exponents_above(exponent, base, RULE: tl.constexpr):
    """Return the offset of the scale byte for a class that covers several exponents."""
    if RULE <= NVFP4_CT:
        return tl.maximum(exponent - base - (_CLASSES - 1), 0) * 8
    else:
        return tl.where((exponent >= 7) & (exponent < 248), exponent - 7, 0)  # noqa: PLR2004 - as in _table_class


@triton.jit
def _fill_tables(amax_ptr, tensor_scale_ptr, table_ptr, RULE: tl.constexpr, ENTRIES: tl.constexpr, SIZE: tl.constexpr):
    expert = tl.program_id(1)
    index = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tensor_scale = tl.load(tensor_scale_ptr + expert)
    base = _table_base(tl.load(amax_ptr + expert), tensor_scale, RULE)
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
            exponent = tl.where(row < 8, row, row + 240)  # noqa: PLR2004 - the inverse of _table_class
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


def _make_tables(rule: int, amax: torch.Tensor, tensor_scale: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return all tables, and the stride between two experts' tables: 0 for MXFP4, where all experts share one."""
    rule, experts = (rule, amax.shape[0]) if rule <= NVFP4_CT.value else (MXFP4_CT.value, 1)
    tables = torch.empty((experts, _ENTRIES), dtype=torch.int64, device=amax.device)
    size = 32768 if INTERPRETED.value else 512  # the interpreter's time grows with the number of programs
    grid = (triton.cdiv(_ENTRIES, size), experts)
    _fill_tables[grid](amax, tensor_scale, tables, rule, _ENTRIES, size, enable_fp_fusion=False)
    return tables, _ENTRIES if rule <= NVFP4_CT.value else 0


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _permuted(low, high, selector):
    """Select bytes of (low, high) by the four low nibbles of the selector; 8 and above selects the sign of a byte."""
    return tl.inline_asm_elementwise(
        "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, selector], dtype=tl.uint32, is_pure=True, pack=1
    )


@triton.jit
def _complements(word):
    """Compute 8 - |q| of each code in its nibble, and the negative ones: eight codes at once, without carries."""
    negative = (word & 0x88888888) ^ 0x88888888
    ones = negative >> 3
    inverted = (word & 0x77777777) ^ (negative - ones)  # |q| less 1 where it is negative
    return 0x88888888 - inverted - ones, negative


@triton.jit
def _least(complement):
    """Return the smallest complement of each block: 8 minus its largest |q|."""
    if INTERPRETED:
        least = complement & 15
        for j in tl.static_range(1, 8):
            least = tl.minimum(least, (complement >> (4 * j)) & 15)
        return tl.min(least.to(tl.int32), axis=2)
    else:
        low = tl.full(complement.shape, 0x08040201, tl.uint32)  # a complement of c < 8 sets bit c of its byte
        high = tl.full(complement.shape, 0x80402010, tl.uint32)
        seen = _permuted(low, high, complement) | _permuted(low, high, complement >> 16)
        seen = tl.reduce(seen, 2, _either)
        seen |= seen >> 16
        seen |= (seen >> 8) | 0x100
        return tl.inline_asm_elementwise(
            "brev.b32 $0, $1; clz.b32 $0, $0;", "=r,r", [seen], dtype=tl.int32, is_pure=True, pack=1
        )


@triton.jit
def _looked_up(table, complement):
    """Return the codes of a word, eight unsigned nibbles."""
    if INTERPRETED:
        codes = complement & 0
        for j in tl.static_range(8):
            entry = (complement >> (4 * j)) & 15
            place = 4 * (2 * (entry & 3) + ((entry >> 2) & 1))
            codes |= tl.where(entry < 8, (table >> place) & 7, 0) << (4 * j)  # noqa: PLR2004 - 8 stands for a zero
        return codes
    else:
        low = table & 0x07070707
        high = (table >> 4) & 0x07070707
        first, last = _permuted(low, high, complement), _permuted(low, high, complement >> 16)
        first |= first >> 4
        last |= last >> 4
        return _permuted(first, last, tl.full(complement.shape, 0x6420, tl.uint32))


@triton.jit
def _count(complement, largest: tl.constexpr):
    """Return the number of the eight complements that are at most `largest`."""
    below = ((0x88888888 + largest * 0x11111111 - complement) >> 3) & 0x11111111
    return (below * 0x11111111) >> 28


@triton.jit
def _signs(codes, complement, negative, step, RULE: tl.constexpr):
    """Return bit 3 of each nibble with a negative weight: either its code or its scale is negative."""
    positive = ((negative | complement) & 0x88888888) ^ 0x88888888
    sign = tl.where((step < 0)[:, :, None], positive, negative)
    sign = tl.where(((step & 0x7FFF) > 0)[:, :, None], sign, 0)
    if RULE == MXFP4_QUARK:
        sign &= codes + 0x77777777  # Quark never writes -0
    return sign


@triton.jit
def _write_quality(records_ptr, complement, table, step, factor, least):
    """Sum the cost times the count over |q| = 1..8."""
    clipped = tl.zeros_like(least)
    signal, error, largest = clipped.to(tl.float32), clipped.to(tl.float32), clipped.to(tl.float32)
    unit, per_unit = error_unit(bf16_rounded(step * (8 - least).to(tl.float32)))
    fewer = tl.zeros_like(least)
    for entry in tl.static_range(8):
        counts = _count(complement, entry).to(tl.int32)
        at_most = tl.sum(counts, axis=2)
        count = at_most - fewer
        fewer = at_most
        weight = bf16_rounded(step * (8.0 - entry))
        code = ((table >> (8 * (entry % 4) + 4 * (entry // 4))) & 7).to(tl.int32)
        lost = tl.abs(weight - e2m1_value(code) * factor)
        top = ((table >> (8 * (entry % 4) + 4 * (entry // 4) + 3)) & 1).to(tl.int32)
        clipped += count * top
        largest = tl.where(count > 0, tl.maximum(largest, lost), largest)
        weight, lost = weight * per_unit, lost * per_unit
        signal += tl.where(count > 0, count.to(tl.float32) * (weight * weight), 0.0)
        error += tl.where(count > 0, count.to(tl.float32) * (lost * lost), 0.0)
    square = unit.to(tl.float64) * unit.to(tl.float64)
    write_record(
        records_ptr,
        tl.sum(tl.sum(signal.to(tl.float64) * square, axis=1), axis=0),
        tl.sum(tl.sum(error.to(tl.float64) * square, axis=1), axis=0),
        tl.max(tl.max(largest, axis=1), axis=0),
        tl.sum(tl.sum(clipped, axis=1), axis=0),
    )


@triton.jit
def _recode(
    packed_ptr,
    step_ptr,
    amax_ptr,
    tensor_scale_ptr,
    table_ptr,
    out_ptr,
    scale_ptr,
    records_ptr,
    rows,
    table_stride,
    GROUP_SHIFT: tl.constexpr,
    RULE: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    QUALITY: tl.constexpr,
):
    """A row of a tile is 32 weights: one group or a part of it, one block or two."""
    expert = tl.program_id(1)
    tensor_scale = tl.load(tensor_scale_ptr + expert)
    base = _table_base(tl.load(amax_ptr + expert), tensor_scale, RULE)
    if base < 0:  # outside the tables: `_encode_slow`
        return
    first = expert.to(tl.int64) * rows
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    at = row[:, None] * 4 + tl.arange(0, 4)[None, :]
    word = tl.load(packed_ptr + first * 4 + at, mask=inside, other=-2004318072)  # eight zeros
    word = tl.reshape(word.to(tl.uint32, bitcast=True), (ROWS, BLOCKS, 4 // BLOCKS))
    step = tl.load(step_ptr + (first >> GROUP_SHIFT) + (row >> GROUP_SHIFT), mask=row < rows, other=0)
    step = step.to(tl.int32)[:, None]
    block = row[:, None] * BLOCKS + tl.arange(0, BLOCKS)[None, :]
    scale_ptr += first * BLOCKS
    complement, negative = _complements(word)
    exponent, nonzero = (step >> 7) & 0xFF, (step & 0x7FFF) > 0
    least = tl.where(nonzero, _least(complement), 8)  # a scale of 0 makes a block of zeros
    if RULE == NVFP4_GIVEN:
        byte = tl.load(scale_ptr + block, mask=inside, other=0).to(tl.int32)
        given = e4m3_value(byte).to(tl.int32, bitcast=True) >> 20
        cell = _table_class(exponent + 127 - (given >> 3), base, RULE) * 8 + (given & 7)
    else:
        cell = _table_class(exponent, base, RULE) * 9 + least
    entry = tl.load(table_ptr + expert * table_stride + cell * 128 + (step & 0x7F))
    table = entry.to(tl.uint32)
    if RULE == NVFP4_GIVEN:
        table = tl.where(nonzero, table, 0)  # zeros stay zero under a block scale of 0 too
    else:
        more = _exponents_above(exponent, base, RULE)
        byte = (entry >> 32).to(tl.int32) + tl.where(least < 8, more, 0)  # noqa: PLR2004 - 8: a block of zeros
        tl.store(scale_ptr + block, byte.to(tl.uint8), mask=inside)
    codes = _looked_up(table[:, :, None], complement)
    codes |= _signs(codes, complement, negative, step, RULE)
    out = tl.reshape(codes, (ROWS, 4)).to(tl.int32, bitcast=True)
    tl.store(out_ptr + first * 4 + at, out, mask=inside)
    if QUALITY:
        factor = decode_factor(byte, tensor_scale, RULE)
        _write_quality(records_ptr, complement, table, bf16_value(step & 0x7FFF), factor, least)


@triton.jit
def _encode_slow_tile(
    tile,
    packed_ptr,
    step_ptr,
    tensor_scale,
    out_ptr,
    scale_ptr,
    blocks,
    BLOCKS_IN_GROUP: tl.constexpr,
    RULE: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Encode some blocks of an expert and return their error statistics."""
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < blocks
    at = row[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    word = tl.load(packed_ptr + at, mask=inside[:, None], other=-2004318072)  # eight zeros
    step = bf16_value(tl.load(step_ptr + row // BLOCKS_IN_GROUP, mask=inside, other=0).to(tl.int32) & 0xFFFF)
    most = tl.zeros_like(word)
    for j in tl.static_range(8):
        most = tl.maximum(most, tl.abs(((word >> (4 * j)) & 15) - 8))
    amax = bf16_rounded(tl.max(most, axis=1).to(tl.float32) * tl.abs(step))
    if RULE == NVFP4_GIVEN:
        byte = tl.load(scale_ptr + row, mask=inside, other=0).to(tl.int32)
    else:
        byte = block_scale(amax, tensor_scale, RULE)
        tl.store(scale_ptr + row, byte.to(tl.uint8), mask=inside)
    factor = decode_factor(byte, tensor_scale, RULE)[:, None]
    unit, per_unit = error_unit(amax)
    out, clipped = tl.zeros_like(word), tl.zeros_like(word)
    signal, error, largest = out.to(tl.float32), out.to(tl.float32), out.to(tl.float32)
    for j in tl.static_range(8):
        weight = bf16_rounded(int4_value((word >> (4 * j)) & 15) * step[:, None])
        magnitude = tl.abs(weight)
        quotient = tl.math.div_rn(magnitude, divisor_of(factor))
        code = e2m1_code(quotient)
        out |= (code | sign_of(weight < 0.0, quotient, code, RULE)) << (4 * j)
        lost = tl.abs(magnitude - e2m1_value(code) * factor)
        largest = tl.maximum(largest, lost)
        clipped += (quotient > 6.0).to(tl.int32)  # noqa: PLR2004 - E2M1's largest
        magnitude, lost = magnitude * per_unit[:, None], lost * per_unit[:, None]
        signal += magnitude * magnitude
        error += lost * lost
    tl.store(out_ptr + at, out, mask=inside[:, None])
    square = unit.to(tl.float64) * unit.to(tl.float64)
    signal = tl.sum(tl.sum(signal, axis=1).to(tl.float64) * square, axis=0)
    error = tl.sum(tl.sum(error, axis=1).to(tl.float64) * square, axis=0)
    return signal, error, tl.max(tl.max(largest, axis=1), axis=0), tl.sum(tl.sum(clipped, axis=1), axis=0)


@triton.jit
def _encode_slow(
    packed_ptr,
    step_ptr,
    amax_ptr,
    tensor_scale_ptr,
    out_ptr,
    scale_ptr,
    records_ptr,
    blocks,
    BLOCKS_IN_GROUP: tl.constexpr,
    RULE: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    QUALITY: tl.constexpr,
):
    expert = tl.program_id(1)
    tensor_scale = tl.load(tensor_scale_ptr + expert)
    if _table_base(tl.load(amax_ptr + expert), tensor_scale, RULE) >= 0:  # encoded by `_recode`
        return
    first = expert.to(tl.int64) * blocks
    packed_ptr += first * WORDS
    step_ptr += first // BLOCKS_IN_GROUP
    out_ptr += first * WORDS
    scale_ptr += first
    signal, error, largest, clipped = no_sums()
    for tile in range(tl.program_id(0), tl.cdiv(blocks, ROWS), tl.num_programs(0)):
        more = _encode_slow_tile(
            tile, packed_ptr, step_ptr, tensor_scale, out_ptr, scale_ptr, blocks, BLOCKS_IN_GROUP, RULE, WORDS, ROWS
        )
        signal, error, clipped = signal + more[0], error + more[1], clipped + more[3]
        largest = tl.maximum(largest, more[2])
    if QUALITY:
        write_record(records_ptr, signal, error, largest, clipped)


def _encode_left_out(
    packed: torch.Tensor,
    step: torch.Tensor,
    rule: int,
    amax: torch.Tensor,
    tensor_scale: torch.Tensor,
    scale: torch.Tensor,
    out: torch.Tensor,
    quality: bool,
) -> torch.Tensor:
    """Encode the experts outside the tables' range into `out`; return error records, zero for all others."""
    experts, n, words = packed.shape
    blocks = n * words // _SLOW_WORDS
    programs = min(triton.cdiv(blocks, _SLOW_ROWS), SLOW_PROGRAMS)
    records = new_records(experts, programs, quality, packed.device)
    arguments = (packed, step.view(torch.int16), amax, tensor_scale, out.view(torch.int32), scale, records, blocks)
    per_group = scale.shape[2] // step.shape[2]
    _encode_slow[(programs, experts)](
        *arguments, per_group, rule, _SLOW_WORDS, _SLOW_ROWS, quality, enable_fp_fusion=False
    )
    return records


def encode(
    packed: torch.Tensor,
    step: torch.Tensor,
    rule: int,
    block: int,
    tensor_scale: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor,
    quality: bool,
) -> tuple[torch.Tensor, QualitySums | None]:
    """Return the codes; block scales are read from `scale` under NVFP4_GIVEN, and written to it otherwise."""
    experts, n, words = packed.shape
    out = torch.empty((experts, n, 4 * words), dtype=torch.uint8, device=packed.device)
    rows = n * words // 4
    tiles = triton.cdiv(rows, _ROWS)
    tables, stride = _make_tables(rule, amax, tensor_scale)
    every = [new_records(experts, tiles, quality, packed.device)]
    shift = (words // 4 // step.shape[2]).bit_length() - 1
    bits, codes = step.view(torch.int16), out.view(torch.int32)
    _recode[(tiles, experts)](
        *(packed, bits, amax, tensor_scale, tables, codes, scale, every[0], rows, stride),
        *(shift, rule, 32 // block, _ROWS, quality),
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    if rule <= NVFP4_CT.value:
        every.append(_encode_left_out(packed, step, rule, amax, tensor_scale, scale, out, quality))
    return out, add_up(every, 8 * n * words) if quality else None
