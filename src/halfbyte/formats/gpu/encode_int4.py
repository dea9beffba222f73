"""INT4 -> NVFP4 weight by weight, for any scale, as in `reference`.

This is the slow path for experts whose weights are outside the range of the tables of `recode_int4`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from halfbyte.formats.gpu.encode_bf16 import PROGRAMS
from halfbyte.formats.gpu.quality import new_records, no_sums, write_record
from halfbyte.formats.gpu.recode_tables import table_base
from halfbyte.formats.gpu.scalars import (
    NVFP4_GIVEN,
    bf16_rounded,
    bf16_value,
    block_scale,
    decode_factor,
    divisor_of,
    e2m1_code,
    e2m1_value,
    error_unit,
    int4_value,
    sign_of,
)

_WORDS = 2  # of a block
_ROWS = 512  # blocks at a time


@triton.jit
def _encode_tile(
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
def _encode(
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
    if table_base(tl.load(amax_ptr + expert), tensor_scale, RULE) >= 0:  # handled by recode_int4
        return
    first = expert.to(tl.int64) * blocks
    packed_ptr += first * WORDS
    step_ptr += first // BLOCKS_IN_GROUP
    out_ptr += first * WORDS
    scale_ptr += first
    signal, error, largest, clipped = no_sums()
    for tile in range(tl.program_id(0), tl.cdiv(blocks, ROWS), tl.num_programs(0)):
        more = _encode_tile(
            tile, packed_ptr, step_ptr, tensor_scale, out_ptr, scale_ptr, blocks, BLOCKS_IN_GROUP, RULE, WORDS, ROWS
        )
        signal, error, clipped = signal + more[0], error + more[1], clipped + more[3]
        largest = tl.maximum(largest, more[2])
    if QUALITY:
        write_record(records_ptr, signal, error, largest, clipped)


def encode_left_out(
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
    blocks = n * words // _WORDS
    programs = min(triton.cdiv(blocks, _ROWS), PROGRAMS)
    records = new_records(experts, programs, quality, packed.device)
    arguments = (packed, step.view(torch.int16), amax, tensor_scale, out.view(torch.int32), scale, records, blocks)
    per_group = scale.shape[2] // step.shape[2]
    _encode[(programs, experts)](*arguments, per_group, rule, _WORDS, _ROWS, quality, enable_fp_fusion=False)
    return records
