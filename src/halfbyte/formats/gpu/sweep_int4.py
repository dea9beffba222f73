"""FP32 screening of the MSE sweep on INT4 sources: a block is a source scale and the counts of each |q|.

Each lane has one block and computes eight distances per scale instead of sixteen. The CPU tabulates losses by source
scale; here each lane would gather some 300 bytes of such a table, estimated to be slower than the arithmetic.
"""

import triton
import triton.language as tl

from halfbyte.formats.gpu.scalars import bf16_rounded
from halfbyte.formats.gpu.sweep_screen import (
    CLOSE,
    CODE_RANGE,
    FIRST,
    FP32_TO_HALVES,
    TINY,
    keep_better,
    likely_scale,
    reciprocal_of,
    record,
    square_of_distance,
    step_of,
    unit_of,
    window,
)

_FLAGS = tl.constexpr(0x33333333)


@triton.jit
def _plane(low_word, high_word, bit: tl.constexpr):
    """One bit of all sixteen codes: bits 0 and 1 of every nibble, one for each word."""
    return ((low_word >> bit) & 0x11111111) | (((high_word >> bit) & 0x11111111) << 1)


@triton.jit
def _ones(flags):
    """Return the number of set flags, two per nibble, as FP32."""
    in_nibbles = flags - ((flags >> 1) & 0x11111111)
    in_bytes = (in_nibbles + (in_nibbles >> 4)) & 0x0F0F0F0F
    return ((in_bytes * 0x01010101) >> 24).to(tl.int32).to(tl.float32)


@triton.jit
def _counts(low_word, high_word):
    """Count |q| = 1..8 among the sixteen nibbles q + 8 of two words."""
    low, high = low_word ^ 0x88888888, high_word ^ 0x88888888  # now in two's complement
    b0, b1, b2, b3 = _plane(low, high, 0), _plane(low, high, 1), _plane(low, high, 2), _plane(low, high, 3)
    m1 = b1 ^ (b3 & b0)  # the magnitude's bits: a negative one is inverted above its lowest set bit
    m2 = b2 ^ (b3 & (b0 | b1))
    not0, not1, not2 = b0 ^ _FLAGS, m1 ^ _FLAGS, m2 ^ _FLAGS
    return (
        _ones(b0 & not1 & not2),
        _ones(not0 & m1 & not2),
        _ones(b0 & m1 & not2),
        _ones(not0 & not1 & m2),
        _ones(b0 & not1 & m2),
        _ones(not0 & m1 & m2),
        _ones(b0 & m1 & m2),
        _ones(b3 & ((b0 | b1 | b2) ^ _FLAGS)),
    )


@triton.jit
def _target(q: tl.constexpr, count, step, one, other):
    """Return 2688 |w| of a magnitude that occurs, else 0, which has no loss under any scale."""
    value = bf16_rounded(step * q) * one * (other * CODE_RANGE)
    return tl.where(count > 0.0, value, 0.0)


@triton.jit
def _loss(targets, counts, step):
    reciprocal = reciprocal_of(step)
    loss = counts[0] * square_of_distance(targets[0], step, reciprocal, FP32_TO_HALVES)
    for m in tl.static_range(1, 8):
        loss += counts[m] * square_of_distance(targets[m], step, reciprocal, FP32_TO_HALVES)
    return loss


@triton.jit
def _largest(targets):
    top = targets[0]
    for m in tl.static_range(1, 8):
        top = tl.maximum(top, targets[m])
    return top


@triton.jit
def screen_int4(
    packed_ptr,
    source_ptr,
    amax_ptr,
    scale_ptr,
    list_ptr,
    length_ptr,
    blocks_of_expert,
    blocks_of_group: tl.constexpr,
    TILE: tl.constexpr,
):
    """Choose the scales of a tile of one expert's blocks."""
    expert = tl.program_id(1)
    inside = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = inside < blocks_of_expert
    block = expert.to(tl.int64) * blocks_of_expert + inside
    low_word = tl.load(packed_ptr + 2 * block, mask=here, other=0).to(tl.uint32, bitcast=True)
    high_word = tl.load(packed_ptr + 2 * block + 1, mask=here, other=0).to(tl.uint32, bitcast=True)
    source = tl.load(source_ptr + block // blocks_of_group, mask=here, other=0).to(tl.uint32)
    step = ((source & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    g, one, other = unit_of(tl.load(amax_ptr + expert))
    n = _counts(low_word, high_word)
    targets = (
        _target(1, n[0], step, one, other),
        _target(2, n[1], step, one, other),
        _target(3, n[2], step, one, other),
        _target(4, n[3], step, one, other),
        _target(5, n[4], step, one, other),
        _target(6, n[5], step, one, other),
        _target(7, n[6], step, one, other),
        _target(8, n[7], step, one, other),
    )
    top = _largest(targets)
    first, last = window(top, _loss(targets, n, step_of(likely_scale(top, g), g)), g)
    best = tl.full([TILE], float("inf"), tl.float32)
    second = tl.full([TILE], float("inf"), tl.float32)
    winner = tl.full([TILE], FIRST, tl.int32)
    for k in range(tl.max(last - first) + 1):
        code = first + k
        loss = tl.where(code <= last, _loss(targets, n, step_of(code, g)), float("inf"))
        best, second, winner = keep_better(loss, code, best, second, winner)
    sure = (second > best * CLOSE + TINY) | (top == 0.0)
    winner = tl.where(top == 0.0, FIRST, winner)
    record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr)
