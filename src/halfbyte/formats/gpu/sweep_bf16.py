"""FP32 screening of the MSE sweep on BF16 sources: each lane has one block and computes sixteen distances per scale."""

import triton
import triton.language as tl

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


@triton.jit
def _pair(pairs_ptr, block, here, place: tl.constexpr, one, other):
    """The targets of two weights that share a 32-bit word."""
    bits = tl.load(pairs_ptr + 8 * block + place, mask=here, other=0).to(tl.uint32, bitcast=True)
    even = ((bits << 16) & 0x7FFF0000).to(tl.float32, bitcast=True)
    odd = (bits & 0x7FFF0000).to(tl.float32, bitcast=True)
    return even * one * (other * CODE_RANGE), odd * one * (other * CODE_RANGE)


@triton.jit
def _targets(pairs_ptr, block, here, one, other):
    t0, t1 = _pair(pairs_ptr, block, here, 0, one, other)
    t2, t3 = _pair(pairs_ptr, block, here, 1, one, other)
    t4, t5 = _pair(pairs_ptr, block, here, 2, one, other)
    t6, t7 = _pair(pairs_ptr, block, here, 3, one, other)
    t8, t9 = _pair(pairs_ptr, block, here, 4, one, other)
    t10, t11 = _pair(pairs_ptr, block, here, 5, one, other)
    t12, t13 = _pair(pairs_ptr, block, here, 6, one, other)
    t14, t15 = _pair(pairs_ptr, block, here, 7, one, other)
    return t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15


@triton.jit
def _loss(targets, step):
    reciprocal = reciprocal_of(step)
    loss = square_of_distance(targets[0], step, reciprocal, FP32_TO_HALVES)
    for j in tl.static_range(1, 16):
        loss += square_of_distance(targets[j], step, reciprocal, FP32_TO_HALVES)
    return loss


@triton.jit
def _largest(targets):
    top = targets[0]
    for j in tl.static_range(1, 16):
        top = tl.maximum(top, targets[j])
    return top


@triton.jit
def screen_bf16(pairs_ptr, amax_ptr, scale_ptr, list_ptr, length_ptr, blocks_of_expert, TILE: tl.constexpr):
    """Choose the scales of a tile of one expert's blocks."""
    expert = tl.program_id(1)
    inside = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = inside < blocks_of_expert
    block = expert.to(tl.int64) * blocks_of_expert + inside
    g, one, other = unit_of(tl.load(amax_ptr + expert))
    targets = _targets(pairs_ptr, block, here, one, other)
    top = _largest(targets)
    first, last = window(top, _loss(targets, step_of(likely_scale(top, g), g)), g)
    best = tl.full([TILE], float("inf"), tl.float32)
    second = tl.full([TILE], float("inf"), tl.float32)
    winner = tl.full([TILE], FIRST, tl.int32)
    for k in range(tl.max(last - first) + 1):
        code = first + k
        loss = tl.where(code <= last, _loss(targets, step_of(code, g)), float("inf"))
        best, second, winner = keep_better(loss, code, best, second, winner)
    sure = (second > best * CLOSE + TINY) | (top == 0.0)
    winner = tl.where(top == 0.0, FIRST, winner)
    record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr)
