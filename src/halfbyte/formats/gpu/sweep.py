"""The exact MSE sweep of NVFP4 block scales for stacks of experts, with the same result as the CPU for every block.

FP32 decides nearly all blocks and FP64 nearly all others, both on the device and asynchronously. The remaining few are
on a list that `settle_int4` and `settle_bf16` read, which synchronizes with the device, and decide in exact integers.

Everything is divided by the power of two below the tensor's amax g, so that 1 <= g < 2. The target of a weight is
t = 2688 |w| (13 significant bits), the step of a scale v is v g (12 bits), its grid c v g (14 bits): all fit into FP32.

Which scales can win. Let `top` be the block's largest target. A scale v certainly loses
- if (top - 6 v g)^2 exceeds the whole loss of some other scale: it clips too much;
- if no weight needs its 4 or 6 (top <= 3.5 v g) and v / 2 is a scale too: v / 2 has all used points of v, and more
  between them. It is at least as good for every weight, and the smaller scale wins ties;
- if all weights round to 0, and also under the next smaller scale.
Some 9 of 126 remain. This also removes the exact ties of v and v / 2, which occur in a third of all INT4 blocks.

FP32 losses. The nearest c is found from x = t / (v g), and thresholds between two c are numbers of 15 bits: t is either
on a threshold, where both neighbors are equally near, or at least 2^-15 away. An error of 2^-19 in x is therefore
harmless. c v g is exact, t - c v g is rounded once, and the sum of 16 squares is within 20 * 2^-24 of the true loss: a
lead of 2^-18 is certain. Targets may underflow, which changes a loss by far less than 2^-100. Multiplications and
additions may be fused or not. Blocks with closer contenders are listed for FP64.

An INT4 block is a source scale and the counts of each |q|: eight distances per scale instead of sixteen. The CPU
tabulates losses by source scale; here each lane would gather some 300 bytes of such a table, estimated to be slower
than the arithmetic.

FP64 losses (`formats.cpu.kernels.sweep` explains exactness). There are two rounds over the scales that can win. The
first finds the smallest loss, the second the contenders within 2^-40 of it, far above the rounding of FP64. A single
contender wins. Several contenders have exact losses if these are below 2^53 units of the contenders' grid and the
weights; then the smallest scale with the smallest loss wins. The remaining blocks are listed for the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from halfbyte.formats.gpu.blocks import NVFP4_BLOCK, check_blocks, check_shape, check_stack, int4_group
from halfbyte.formats.gpu.scalars import bf16_rounded
from halfbyte.formats.reference import int4
from halfbyte.formats.reference.floats import F32, bf16_to_f32
from halfbyte.formats.reference.sweep import best_scale

# Experts are swept in groups of some 16 million blocks, so that the list of close blocks takes at most 128 MiB.
_BLOCKS_AT_ONCE = 1 << 24
_UNDECIDED_LISTED = 1 << 16
# A warp runs until its last block is done, so larger tiles wait longer; two blocks per lane improve utilization.
_TILE, _WARPS = 64, 1
_CLOSE_TILE, _CLOSE_WARPS, _CLOSE_PROGRAMS = 32, 4, 1056

_FIRST, _LAST = tl.constexpr(1), tl.constexpr(126)  # E4M3 codes of the scales, ascending in value
_EVENLY_SPACED = tl.constexpr(15)  # up to this code a scale is code * 2^-9; above, half of it is code - 8
_UNDECIDED = tl.constexpr(0)
_CODE_RANGE = tl.constexpr(2688.0)
_FP32_LEAD = tl.constexpr(1.0 + 2.0**-18)
_FP64_MARGIN = tl.constexpr(2.0**-40)
_TINY = tl.constexpr(2.0**-100)
_CODE_TO_VALUE = tl.constexpr(2.0**120)  # between E4M3's exponents and FP32's, with E4M3's mantissa on top of FP32's
_VALUE_TO_CODE = tl.constexpr(2.0**-120)
_MANTISSA_BELOW_E4M3 = tl.constexpr(20)
_A_BIT_LESS = tl.constexpr(1.0 - 2.0**-20)
_A_BIT_MORE = tl.constexpr(1.0 + 2.0**-20)
_FP32_TO_HALVES = tl.constexpr(2.0**22)  # adding and subtracting it rounds to multiples of 0.5
_FP64_TO_HALVES = tl.constexpr(2.0**51)

# Entries of the list: the block's number, and above it the first and the last scale that can win.
_FIRST_AT, _LAST_AT = tl.constexpr(40), tl.constexpr(48)
_NUMBER = tl.constexpr((1 << 40) - 1)

_ABSENT = tl.constexpr(0x7FFF)  # above every magnitude
_FLAGS = tl.constexpr(0x33333333)  # two flags per nibble


@triton.jit
def _unit_of(amax):
    """Return (g, u, v) with amax * u * v = g in [1, 2); one power of two would not fit into FP32. 1 for a zero amax."""
    lift = tl.where(amax < 2.0**-60, 64, 0)
    lifted = amax * tl.where(amax < 2.0**-60, 2.0**64, 1.0)
    exponent = ((lifted.to(tl.int32, bitcast=True) >> 23) & 255) - 127 - lift
    half = exponent >> 1
    one = ((127 - half) << 23).to(tl.float32, bitcast=True)
    other = ((127 - (exponent - half)) << 23).to(tl.float32, bitcast=True)
    return tl.where(amax == 0.0, 1.0, amax * one * other), one, other


@triton.jit
def _step_of(code, g):
    """v g of an E4M3 code. The code's bits are an FP32 number, 2^-120 times v; E4M3's subnormals are FP32's."""
    return (code << _MANTISSA_BELOW_E4M3).to(tl.float32, bitcast=True) * (g * _CODE_TO_VALUE)


@triton.jit
def _code_at(value):
    """Return the largest E4M3 code whose value does not exceed this one (within about 1e-6)."""
    return (value * _VALUE_TO_CODE).to(tl.int32, bitcast=True) >> _MANTISSA_BELOW_E4M3


@triton.jit
def _reciprocal_of(step):
    """Return slightly less than 1 / step, so that x is never just below a power of two, where rounding would fail."""
    return 1.0 / step * _A_BIT_LESS


@triton.jit
def _square_of_distance(target, step, reciprocal, TO_HALVES: tl.constexpr):
    """(t - c v g)^2 with the nearest c.

    E2M1 has steps of 0.5 up to 2, 1 up to 4 and 2 above: half of the power of two of x. This is the spacing of FP32
    numbers around 2^22 x (2^22 if x is below 1), so adding and subtracting it rounds x to such a step.
    """
    x = target * reciprocal
    shift = tl.maximum(x, 1.0) * TO_HALVES
    nearest = tl.minimum((x + shift) - shift, 6.0)
    distance = target - nearest * step
    return distance * distance


@triton.jit
def _likely_scale(top, g):
    """Return the scale that maps the largest weight to about 6; its loss excludes most smaller scales."""
    return tl.minimum(tl.maximum(_code_at(top / g * (1.03 / 6.0)), _FIRST), _LAST)


@triton.jit
def _window(top, known, g):
    """Return the first and last scale that can win in a block; `known` is the loss of some scale."""
    unclipped = top - tl.sqrt(known * 1.0001 + 1e-30)
    first = _code_at(tl.maximum(unclipped, 0.0) / g * (0.999 / 6.0)) + 1
    # The last that needs its 4: 3.5 v g < top, an exact comparison.
    last = tl.minimum(_code_at(top / g * (_A_BIT_MORE / 3.5)), _LAST)
    last = tl.where(3.5 * _step_of(last, g) >= top, last - 1, last)
    # For small ones half may not be a scale: they can win up to the first that rounds all to 0.
    nothing = tl.minimum((top / g * (_A_BIT_LESS * 2048.0)).to(tl.int32), _EVENLY_SPACED)
    nothing = tl.maximum(nothing, _FIRST)
    nothing = tl.where(0.25 * _step_of(nothing, g) < top, nothing + 1, nothing)
    nothing = tl.where(0.25 * _step_of(nothing, g) < top, nothing + 1, nothing)
    last = tl.where(last < _EVENLY_SPACED, tl.minimum(nothing, _EVENLY_SPACED), last)
    return tl.minimum(first, _LAST), last


@triton.jit
def _keep_better(loss, code, best, second, winner):
    """Update the best scales; they come in ascending order, so with a strict comparison the smallest wins ties."""
    second = tl.minimum(second, tl.maximum(best, loss))
    winner = tl.where(loss < best, code, winner)
    return tl.minimum(best, loss), second, winner


@triton.jit
def _record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr):
    """Write the winners and list the blocks without a certain one."""
    tl.store(scale_ptr + block, tl.where(sure, winner, _UNDECIDED).to(tl.uint8), mask=here)
    close = (here & (sure == 0)).to(tl.int32)
    count = tl.sum(close)
    if count > 0:
        place = tl.atomic_add(length_ptr, count) + tl.cumsum(close) - 1
        entry = block | (first.to(tl.int64) << _FIRST_AT) | (last.to(tl.int64) << _LAST_AT)
        tl.store(list_ptr + place, entry, mask=close > 0)


# FP32, INT4 sources.


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
def _int4_target(q: tl.constexpr, count, step, one, other):
    """Return 2688 |w| of a magnitude that occurs, else 0, which has no loss under any scale."""
    value = bf16_rounded(step * q) * one * (other * _CODE_RANGE)
    return tl.where(count > 0.0, value, 0.0)


@triton.jit
def _int4_loss(targets, counts, step):
    reciprocal = _reciprocal_of(step)
    loss = counts[0] * _square_of_distance(targets[0], step, reciprocal, _FP32_TO_HALVES)
    for m in tl.static_range(1, 8):
        loss += counts[m] * _square_of_distance(targets[m], step, reciprocal, _FP32_TO_HALVES)
    return loss


@triton.jit
def _int4_top(targets):
    top = targets[0]
    for m in tl.static_range(1, 8):
        top = tl.maximum(top, targets[m])
    return top


@triton.jit
def _screen_int4(
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
    g, one, other = _unit_of(tl.load(amax_ptr + expert))
    n = _counts(low_word, high_word)
    targets = (
        _int4_target(1, n[0], step, one, other),
        _int4_target(2, n[1], step, one, other),
        _int4_target(3, n[2], step, one, other),
        _int4_target(4, n[3], step, one, other),
        _int4_target(5, n[4], step, one, other),
        _int4_target(6, n[5], step, one, other),
        _int4_target(7, n[6], step, one, other),
        _int4_target(8, n[7], step, one, other),
    )
    top = _int4_top(targets)
    first, last = _window(top, _int4_loss(targets, n, _step_of(_likely_scale(top, g), g)), g)
    best = tl.full([TILE], float("inf"), tl.float32)
    second = tl.full([TILE], float("inf"), tl.float32)
    winner = tl.full([TILE], _FIRST, tl.int32)
    for k in range(tl.max(last - first) + 1):
        code = first + k
        loss = tl.where(code <= last, _int4_loss(targets, n, _step_of(code, g)), float("inf"))
        best, second, winner = _keep_better(loss, code, best, second, winner)
    sure = (second > best * _FP32_LEAD + _TINY) | (top == 0.0)
    winner = tl.where(top == 0.0, _FIRST, winner)
    _record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr)


# FP32, BF16 sources.


@triton.jit
def _pair(pairs_ptr, block, here, place: tl.constexpr, one, other):
    """The targets of two weights that share a 32-bit word."""
    bits = tl.load(pairs_ptr + 8 * block + place, mask=here, other=0).to(tl.uint32, bitcast=True)
    even = ((bits << 16) & 0x7FFF0000).to(tl.float32, bitcast=True)
    odd = (bits & 0x7FFF0000).to(tl.float32, bitcast=True)
    return even * one * (other * _CODE_RANGE), odd * one * (other * _CODE_RANGE)


@triton.jit
def _bf16_targets(pairs_ptr, block, here, one, other):
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
def _bf16_loss(targets, step):
    reciprocal = _reciprocal_of(step)
    loss = _square_of_distance(targets[0], step, reciprocal, _FP32_TO_HALVES)
    for j in tl.static_range(1, 16):
        loss += _square_of_distance(targets[j], step, reciprocal, _FP32_TO_HALVES)
    return loss


@triton.jit
def _bf16_top(targets):
    top = targets[0]
    for j in tl.static_range(1, 16):
        top = tl.maximum(top, targets[j])
    return top


@triton.jit
def _screen_bf16(pairs_ptr, amax_ptr, scale_ptr, list_ptr, length_ptr, blocks_of_expert, TILE: tl.constexpr):
    """Choose the scales of a tile of one expert's blocks."""
    expert = tl.program_id(1)
    inside = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = inside < blocks_of_expert
    block = expert.to(tl.int64) * blocks_of_expert + inside
    g, one, other = _unit_of(tl.load(amax_ptr + expert))
    targets = _bf16_targets(pairs_ptr, block, here, one, other)
    top = _bf16_top(targets)
    first, last = _window(top, _bf16_loss(targets, _step_of(_likely_scale(top, g), g)), g)
    best = tl.full([TILE], float("inf"), tl.float32)
    second = tl.full([TILE], float("inf"), tl.float32)
    winner = tl.full([TILE], _FIRST, tl.int32)
    for k in range(tl.max(last - first) + 1):
        code = first + k
        loss = tl.where(code <= last, _bf16_loss(targets, _step_of(code, g)), float("inf"))
        best, second, winner = _keep_better(loss, code, best, second, winner)
    sure = (second > best * _FP32_LEAD + _TINY) | (top == 0.0)
    winner = tl.where(top == 0.0, _FIRST, winner)
    _record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr)


# FP64.


@triton.jit
def _int4_magnitudes(packed_ptr, source_ptr, block, here, blocks_of_group: tl.constexpr):
    """BF16 magnitudes [tile, 16] of INT4 blocks."""
    column = tl.arange(0, 16)
    word = tl.load(packed_ptr + (2 * block)[:, None] + (column // 8)[None, :], mask=here[:, None], other=0)
    q = ((word >> (4 * (column % 8))[None, :]) & 15) - 8
    source = tl.load(source_ptr + block // blocks_of_group, mask=here, other=0).to(tl.int32)
    step = ((source & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    weight = tl.where(q == 0, 0.0, bf16_rounded(tl.abs(q).to(tl.float32) * step[:, None]))
    return weight.to(tl.int32, bitcast=True) >> 16


@triton.jit
def _bf16_magnitudes(weight_ptr, block, here):
    column = tl.arange(0, 16)
    bits = tl.load(weight_ptr + (16 * block)[:, None] + column[None, :], mask=here[:, None], other=0)
    return bits.to(tl.int32) & 0x7FFF


@triton.jit
def _fp64_losses(target, code, amax):
    """FP64 losses [tile] of one scale for each block."""
    step = _step_of(code, 1.0).to(tl.float64) * amax
    squares = _square_of_distance(target, step[:, None], _reciprocal_of(step)[:, None], _FP64_TO_HALVES)
    return tl.sum(squares, axis=1)


@triton.jit
def _exact_below(smallest_bits, amax_bits, code):
    """Losses under this bound are exact sums; see `formats.cpu.kernels.sweep.exact_below`."""
    unit_of_weights = tl.maximum(smallest_bits >> 7, 1) - 134 + 7
    unit_of_grid = -1 + (tl.maximum(code >> 3, 1) - 10) + (tl.maximum(amax_bits >> 7, 1) - 134)
    exponent = 53 + 2 * tl.minimum(unit_of_weights, unit_of_grid)
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _settled(bits, amax, first, last):
    """The winner of each block, or _UNDECIDED."""
    target = (bits << 16).to(tl.float32, bitcast=True).to(tl.float64) * _CODE_RANGE
    wide = amax.to(tl.float64)
    rounds = tl.max(last - first) + 1
    best = tl.full(first.shape, float("inf"), tl.float64)
    for k in range(rounds):
        code = tl.minimum(first + k, last)
        best = tl.minimum(best, _fp64_losses(target, code, wide))
    limit = best + best * _FP64_MARGIN
    contenders = tl.zeros(first.shape, tl.int32)
    smallest = tl.zeros(first.shape, tl.int32) + _LAST
    winner = tl.zeros(first.shape, tl.int32) + _LAST
    for k in range(rounds):
        code = tl.minimum(first + k, last)
        loss = _fp64_losses(target, code, wide)
        contends = (loss <= limit) & (first + k <= last)
        contenders += contends.to(tl.int32)
        smallest = tl.where(contends, tl.minimum(smallest, code), smallest)
        winner = tl.where(contends & (loss == best), tl.minimum(winner, code), winner)
    least = tl.min(tl.where(bits == 0, _ABSENT, bits), axis=1)
    exact = limit < _exact_below(least, amax.to(tl.int32, bitcast=True) >> 16, smallest)
    return tl.where(contenders == 1, smallest, tl.where(exact, winner, _UNDECIDED))


@triton.jit
def _settle_close(
    source_ptr,
    source_scale_ptr,
    amax_ptr,
    scale_ptr,
    list_ptr,
    length_ptr,
    undecided_ptr,
    undecided_length_ptr,
    first_block,
    blocks_of_expert,
    capacity,
    blocks_of_group: tl.constexpr,
    TILE: tl.constexpr,
):
    """Settle the listed blocks, divided among the programs; a `blocks_of_group` of 0 means a BF16 source."""
    length = tl.load(length_ptr)
    for tile in range(tl.program_id(0), tl.cdiv(length, TILE), tl.num_programs(0)):
        place = tile * TILE + tl.arange(0, TILE)
        here = place < length
        entry = tl.load(list_ptr + place, mask=here, other=(1 << 40) | (1 << 48))
        block = entry & _NUMBER
        first = ((entry >> _FIRST_AT) & 255).to(tl.int32)
        last = ((entry >> _LAST_AT) & 255).to(tl.int32)
        amax = tl.load(amax_ptr + block // blocks_of_expert, mask=here, other=1.0)
        if blocks_of_group > 0:
            bits = _int4_magnitudes(source_ptr, source_scale_ptr, block, here, blocks_of_group)
        else:
            bits = _bf16_magnitudes(source_ptr, block, here)
        winner = _settled(bits, amax, first, last)
        tl.store(scale_ptr + block, winner.to(tl.uint8), mask=here)
        undecided = (here & (winner == _UNDECIDED)).to(tl.int32)
        count = tl.sum(undecided)
        if count > 0:
            slot = tl.atomic_add(undecided_length_ptr, count) + tl.cumsum(undecided) - 1
            tl.store(undecided_ptr + slot, first_block + block, mask=(undecided > 0) & (slot < capacity))


# Launches.


class Swept(NamedTuple):
    """Block scales as E4M3 bit patterns [E, N, K / 16], 0 where undecided, and the numbers of the undecided blocks.

    `undecided` is a list of fixed capacity with `count` (int32 [1]) valid entries. If `count` exceeds the capacity, use
    the zeros in `scale`. `close` counts the blocks that needed FP64.
    """

    scale: Tensor
    undecided: Tensor
    count: Tensor
    close: Tensor


def sweep_int4(packed: Tensor, scale: Tensor, amax: Tensor) -> Swept:
    """Sweep INT4 experts: codes int32 [E, N, K / 8], scales bf16 [E, N, K / group], amax f32 [E] of each scale group.

    No weight may exceed its amax.
    """
    blocks_of_group = int4_group(packed, scale) // NVFP4_BLOCK
    experts, rows, words = packed.shape
    source = scale.view(torch.int16)

    def screen(part: slice, grid: tuple[int, int], out: Tensor, close: Tensor, length: Tensor) -> None:
        _screen_int4[grid](
            packed[part],
            source[part],
            amax[part],
            out,
            close,
            length,
            rows * words // 2,
            blocks_of_group=blocks_of_group,
            TILE=_TILE,
            num_warps=_WARPS,
        )

    return _sweep((experts, rows, words // 2), (packed, source), amax, blocks_of_group, screen)


def sweep_bf16(weight: Tensor, amax: Tensor) -> Swept:
    """Sweep BF16 experts: weights [E, N, K], amax f32 [E] of each scale group."""
    check_stack("weight", weight, torch.bfloat16)
    experts, rows, columns = weight.shape
    check_blocks(columns, NVFP4_BLOCK)
    pairs = weight.view(torch.int32)
    bits = weight.view(torch.int16)

    def screen(part: slice, grid: tuple[int, int], out: Tensor, close: Tensor, length: Tensor) -> None:
        blocks = rows * columns // NVFP4_BLOCK
        _screen_bf16[grid](pairs[part], amax[part], out, close, length, blocks, TILE=_TILE, num_warps=_WARPS)

    return _sweep((experts, rows, columns // NVFP4_BLOCK), (bits, bits), amax, 0, screen)


def _sweep(
    shape: tuple[int, int, int],
    sources: tuple[Tensor, Tensor],
    amax: Tensor,
    blocks_of_group: int,
    screen: Callable[[slice, tuple[int, int], Tensor, Tensor, Tensor], None],
) -> Swept:
    """Screen and settle the experts in groups."""
    experts, rows, blocks_of_row = shape
    check_shape("amax", amax, (experts,), torch.float32)
    blocks = rows * blocks_of_row
    at_once = min(max(_BLOCKS_AT_ONCE // blocks, 1), experts)
    starts = range(0, experts, at_once)
    device = amax.device
    out = torch.empty(shape, dtype=torch.uint8, device=device)
    close = torch.empty(at_once * blocks, dtype=torch.int64, device=device)
    lengths = torch.zeros(len(starts), dtype=torch.int32, device=device)
    undecided = torch.empty(_UNDECIDED_LISTED, dtype=torch.int64, device=device)
    count = torch.zeros(1, dtype=torch.int32, device=device)
    for turn, start in enumerate(starts):
        part = slice(start, min(start + at_once, experts))
        grid = (-(-blocks // _TILE), part.stop - start)
        screen(part, grid, out[part], close, lengths[turn:])
        _settle_close[(min(_CLOSE_PROGRAMS, -(-grid[1] * blocks // _CLOSE_TILE)),)](
            sources[0][part],
            sources[1][part],
            amax[part],
            out[part],
            close,
            lengths[turn:],
            undecided,
            count,
            start * blocks,
            blocks,
            _UNDECIDED_LISTED,
            blocks_of_group=blocks_of_group,
            TILE=_CLOSE_TILE,
            num_warps=_CLOSE_WARPS,
        )
    return Swept(out, undecided, count, lengths)


def settle_int4(swept: Swept, packed: Tensor, scale: Tensor, amax: Tensor) -> int:
    """Decide the undecided blocks of these experts in place and return their number. Synchronizes with the device."""
    groups = scale.view(torch.int16).reshape(-1)
    per_group = swept.scale.numel() // groups.numel()

    def blocks(numbers: Tensor) -> F32:
        words = packed.reshape(-1, 2)[numbers].cpu().numpy()
        steps = groups[numbers // per_group].cpu().numpy().view(np.uint16)[:, None]
        return bf16_to_f32(int4.decode(words, steps, NVFP4_BLOCK))

    return _settle(swept, amax, blocks)


def settle_bf16(swept: Swept, weight: Tensor, amax: Tensor) -> int:
    """Decide the undecided blocks of these experts in place and return their number. Synchronizes with the device."""

    def blocks(numbers: Tensor) -> F32:
        return bf16_to_f32(weight.view(torch.int16).reshape(-1, NVFP4_BLOCK)[numbers].cpu().numpy().view(np.uint16))

    return _settle(swept, amax, blocks)


def _settle(swept: Swept, amax: Tensor, blocks: Callable[[Tensor], F32]) -> int:
    count = int(swept.count.item())
    if count == 0:
        return 0
    flat = swept.scale.reshape(-1)
    numbers = swept.undecided[:count] if count <= len(swept.undecided) else torch.nonzero(flat == 0)[:, 0]
    largest = amax[numbers // swept.scale[0].numel()].cpu().numpy()
    chosen = [best_scale(block, float(top)) for block, top in zip(blocks(numbers), largest, strict=True)]
    flat[numbers] = torch.tensor(chosen, dtype=torch.uint8, device=flat.device)
    return count
