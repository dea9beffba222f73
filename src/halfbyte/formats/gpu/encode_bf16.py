"""BF16 -> NVFP4 and MXFP4 for a stack of experts in one launch.

A tile is a number of blocks with two weights per int32. Even and odd columns stay in separate registers, so a byte of
two codes is computed without exchanging data between threads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.blocks import (
    SLOW_PROGRAMS,
    QualitySums,
    add_up,
    new_records,
    no_sums,
    sums_of_pairs,
    write_record,
)
from halfbyte.formats.gpu.scalars import (
    MXFP4_QUARK,
    NVFP4_GIVEN,
    bf16_value,
    block_scale,
    decode_factor,
    divisor_of,
    e2m1_code,
    e2m1_value,
    f32_of,
    is_ordinary,
    quotient_of,
    sign_of,
)

_TILE_WORDS, _WARPS = 2048, 4


@triton.jit
def _quantize(magnitude, negative, quotient, signed, factor, RULE: tl.constexpr):
    """Code with its sign, absolute error, and whether it was clipped."""
    code = e2m1_code(quotient)
    error = tl.abs(magnitude - e2m1_value(code) * factor)
    return code | sign_of(negative, signed, code, RULE), error, quotient > 6.0  # noqa: PLR2004 - E2M1's largest


@triton.jit
def _quotients(even, odd, factor, RULE: tl.constexpr, FAST: tl.constexpr):
    """Divide magnitudes by their factor, and return the value that determines whether a sign is kept."""
    divisor = divisor_of(factor)
    if RULE >= MXFP4_QUARK:
        reciprocal = tl.math.div_rn(1.0, factor)  # a power of two: multiplying by the reciprocal is exact
        even, odd = even * reciprocal, odd * reciprocal
        return even, odd, even, odd
    elif FAST:
        reciprocal = tl.math.div_rn(1.0, divisor)
        even_quotient = quotient_of(even, divisor, reciprocal, 1)
        odd_quotient = quotient_of(odd, divisor, reciprocal, 1)
        if RULE == NVFP4_GIVEN:  # with a scale of 0, all nonzero weights saturate
            even_quotient = tl.where(factor > 0.0, even_quotient, tl.where(even > 0.0, 8.0, 0.0))
            odd_quotient = tl.where(factor > 0.0, odd_quotient, tl.where(odd > 0.0, 8.0, 0.0))
        return even_quotient, odd_quotient, even, odd
    else:
        even, odd = tl.math.div_rn(even, divisor), tl.math.div_rn(odd, divisor)
        return even, odd, even, odd


@triton.jit
def _encode_tile(
    tile,
    weight_ptr,
    tensor_scale,
    packed_ptr,
    scale_ptr,
    blocks,
    RULE: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    QUALITY: tl.constexpr,
    FAST: tl.constexpr,
):
    """Encode some blocks of an expert and return their error statistics."""
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < blocks
    at = row[:, None] * WORDS + tl.arange(0, WORDS)[None, :]
    word = tl.load(weight_ptr + at, mask=inside[:, None], other=0)
    even, odd = f32_of((word & 0x7FFF) << 16), f32_of(word & 0x7FFF0000)
    amax = bf16_value(tl.max(tl.maximum(word & 0x7FFF, (word >> 16) & 0x7FFF), axis=1))
    if RULE == NVFP4_GIVEN:
        byte = tl.load(scale_ptr + row, mask=inside, other=0).to(tl.int32)
    else:
        byte = block_scale(amax, tensor_scale, RULE)
        tl.store(scale_ptr + row, byte.to(tl.uint8), mask=inside)
    factor = decode_factor(byte, tensor_scale, RULE)[:, None]
    low, high, even_kept, odd_kept = _quotients(even, odd, factor, RULE, FAST)
    low, low_error, low_clipped = _quantize(even, (word & 0x8000) != 0, low, even_kept, factor, RULE)
    high, high_error, high_clipped = _quantize(odd, word < 0, high, odd_kept, factor, RULE)
    tl.store(packed_ptr + at, (low | (high << 4)).to(tl.uint8), mask=inside[:, None])
    if QUALITY:
        return sums_of_pairs(even, odd, low_error, high_error, low_clipped, high_clipped, amax)
    else:
        return no_sums()


@triton.jit
def _encode(
    weight_ptr,
    amax_ptr,
    tensor_scale_ptr,
    packed_ptr,
    scale_ptr,
    records_ptr,
    blocks,
    RULE: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    QUALITY: tl.constexpr,
    FAST: tl.constexpr,
):
    expert = tl.program_id(1)
    if (RULE < MXFP4_QUARK) & (is_ordinary(tl.load(amax_ptr + expert)) != FAST):
        return
    first = expert.to(tl.int64) * blocks
    tensor_scale = tl.load(tensor_scale_ptr + expert)
    weight_ptr += first * WORDS
    packed_ptr += first * WORDS
    scale_ptr += first
    if FAST:
        signal, error, largest, clipped = _encode_tile(
            tl.program_id(0), weight_ptr, tensor_scale, packed_ptr, scale_ptr, blocks, RULE, WORDS, ROWS, QUALITY, FAST
        )
    else:
        signal, error, largest, clipped = no_sums()
        for tile in range(tl.program_id(0), tl.cdiv(blocks, ROWS), tl.num_programs(0)):
            more = _encode_tile(
                tile, weight_ptr, tensor_scale, packed_ptr, scale_ptr, blocks, RULE, WORDS, ROWS, QUALITY, FAST
            )
            signal, error, clipped = signal + more[0], error + more[1], clipped + more[3]
            largest = tl.maximum(largest, more[2])
    if QUALITY:
        write_record(records_ptr, signal, error, largest, clipped)


def encode(
    weight: torch.Tensor,
    rule: int,
    block: int,
    tensor_scale: torch.Tensor,
    scale: torch.Tensor,
    amax: torch.Tensor,
    quality: bool,
) -> tuple[torch.Tensor, QualitySums | None]:
    """Return the codes; block scales are read from `scale` under NVFP4_GIVEN, and written to it otherwise."""
    experts, n, k = weight.shape
    packed = torch.empty((experts, n, k // 2), dtype=torch.uint8, device=weight.device)
    blocks, rows = n * k // block, 2 * _TILE_WORDS // block
    tiles = triton.cdiv(blocks, rows)
    arguments = (weight.view(torch.int32), amax, tensor_scale, packed, scale)
    options = (blocks, rule, block // 2, rows, quality)
    every = []
    for fast, programs in ((True, tiles), (False, min(tiles, SLOW_PROGRAMS))):
        if fast or rule < MXFP4_QUARK.value:  # MXFP4 has no slow path
            every.append(new_records(experts, programs, quality, weight.device))
            _encode[(programs, experts)](
                *arguments, every[-1], *options, fast, num_warps=_WARPS, enable_fp_fusion=False
            )
    return packed, add_up(every, n * k) if quality else None
