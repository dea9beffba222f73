"""INT4 -> NVFP4 and MXFP4 by table lookup, without arithmetic on weights.

Inside a group every weight is one of 16 values, so a block depends only on its group's scale and its largest |q| (or on
the block scale that a sweep chose). Formats are floating point: a scale twice as large gives the same codes and the
next exponent, except at the limits of the range. A table of 16 exponents, the last one for all above, times 128
mantissas therefore covers every block of an expert. `recode_tables` builds it. An entry contains the block's scale byte
and the codes of |q| = 1..8. Eight codes at a time are looked up by permuting bytes.

Experts with weights near the limits of FP32 are handled by `encode_int4`; no released model has any.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.encode_int4 import encode_left_out
from halfbyte.formats.gpu.quality import QualitySums, add_up, new_records, write_record
from halfbyte.formats.gpu.recode_tables import exponents_above, make_tables, table_base, table_class
from halfbyte.formats.gpu.scalars import (
    INTERPRETED,
    MXFP4_QUARK,
    NVFP4_CT,
    NVFP4_GIVEN,
    bf16_rounded,
    bf16_value,
    decode_factor,
    e2m1_value,
    e4m3_value,
    error_unit,
)

_ROWS, _WARPS = 256, 4


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
    """Return the codes of a word, eight unsigned nibbles; `recode_tables` describes the table layout."""
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
    base = table_base(tl.load(amax_ptr + expert), tensor_scale, RULE)
    if base < 0:  # handled by encode_int4
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
        cell = table_class(exponent + 127 - (given >> 3), base, RULE) * 8 + (given & 7)
    else:
        cell = table_class(exponent, base, RULE) * 9 + least
    entry = tl.load(table_ptr + expert * table_stride + cell * 128 + (step & 0x7F))
    table = entry.to(tl.uint32)
    if RULE == NVFP4_GIVEN:
        table = tl.where(nonzero, table, 0)  # zeros stay zero under a block scale of 0 too
    else:
        more = exponents_above(exponent, base, RULE)
        byte = (entry >> 32).to(tl.int32) + tl.where(least < 8, more, 0)  # noqa: PLR2004 - 8: a block of zeros
        tl.store(scale_ptr + block, byte.to(tl.uint8), mask=inside)
    codes = _looked_up(table[:, :, None], complement)
    codes |= _signs(codes, complement, negative, step, RULE)
    out = tl.reshape(codes, (ROWS, 4)).to(tl.int32, bitcast=True)
    tl.store(out_ptr + first * 4 + at, out, mask=inside)
    if QUALITY:
        factor = decode_factor(byte, tensor_scale, RULE)
        _write_quality(records_ptr, complement, table, bf16_value(step & 0x7FFF), factor, least)


def recode(
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
    tables, stride = make_tables(rule, amax, tensor_scale)
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
        every.append(encode_left_out(packed, step, rule, amax, tensor_scale, scale, out, quality))
    return out, add_up(every, 8 * n * words) if quality else None
