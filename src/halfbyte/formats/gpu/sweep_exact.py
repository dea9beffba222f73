"""FP64 sweep for blocks whose two best scales FP32 cannot distinguish; `formats.cpu.kernels.sweep` explains exactness.

There are two rounds over the scales that can win. The first finds the smallest loss, the second the contenders within
2^-40 of it, far above the rounding of FP64. A single contender wins. Several contenders have exact losses if these are
below 2^53 units of the contenders' grid and the weights; then the smallest scale with the smallest loss wins. The
remaining blocks are listed for exact integer arithmetic on the host.
"""

import triton
import triton.language as tl

from halfbyte.formats.gpu.scalars import bf16_rounded
from halfbyte.formats.gpu.sweep_screen import (
    CODE_RANGE,
    FIRST_AT,
    FP64_TO_HALVES,
    LAST,
    LAST_AT,
    UNDECIDED,
    reciprocal_of,
    square_of_distance,
    step_of,
)

_CLOSE = tl.constexpr(2.0**-40)
_NUMBER = tl.constexpr((1 << 40) - 1)
_ABSENT = tl.constexpr(0x7FFF)


@triton.jit
def _int4_bits(packed_ptr, source_ptr, block, here, blocks_of_group: tl.constexpr):
    """BF16 magnitudes [tile, 16] of INT4 blocks."""
    column = tl.arange(0, 16)
    word = tl.load(packed_ptr + (2 * block)[:, None] + (column // 8)[None, :], mask=here[:, None], other=0)
    q = ((word >> (4 * (column % 8))[None, :]) & 15) - 8
    source = tl.load(source_ptr + block // blocks_of_group, mask=here, other=0).to(tl.int32)
    step = ((source & 0x7FFF) << 16).to(tl.float32, bitcast=True)
    weight = tl.where(q == 0, 0.0, bf16_rounded(tl.abs(q).to(tl.float32) * step[:, None]))
    return weight.to(tl.int32, bitcast=True) >> 16


@triton.jit
def _bf16_bits(weight_ptr, block, here):
    column = tl.arange(0, 16)
    bits = tl.load(weight_ptr + (16 * block)[:, None] + column[None, :], mask=here[:, None], other=0)
    return bits.to(tl.int32) & 0x7FFF


@triton.jit
def _losses(target, code, amax):
    """FP64 losses [tile] of one scale for each block."""
    step = step_of(code, 1.0).to(tl.float64) * amax
    squares = square_of_distance(target, step[:, None], reciprocal_of(step)[:, None], FP64_TO_HALVES)
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
    """The winner of each block, or UNDECIDED."""
    target = (bits << 16).to(tl.float32, bitcast=True).to(tl.float64) * CODE_RANGE
    wide = amax.to(tl.float64)
    rounds = tl.max(last - first) + 1
    best = tl.full(first.shape, float("inf"), tl.float64)
    for k in range(rounds):
        code = tl.minimum(first + k, last)
        best = tl.minimum(best, _losses(target, code, wide))
    limit = best + best * _CLOSE
    contenders = tl.zeros(first.shape, tl.int32)
    smallest = tl.zeros(first.shape, tl.int32) + LAST
    winner = tl.zeros(first.shape, tl.int32) + LAST
    for k in range(rounds):
        code = tl.minimum(first + k, last)
        loss = _losses(target, code, wide)
        contends = (loss <= limit) & (first + k <= last)
        contenders += contends.to(tl.int32)
        smallest = tl.where(contends, tl.minimum(smallest, code), smallest)
        winner = tl.where(contends & (loss == best), tl.minimum(winner, code), winner)
    least = tl.min(tl.where(bits == 0, _ABSENT, bits), axis=1)
    exact = limit < _exact_below(least, amax.to(tl.int32, bitcast=True) >> 16, smallest)
    return tl.where(contenders == 1, smallest, tl.where(exact, winner, UNDECIDED))


@triton.jit
def settle_close(
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
        first = ((entry >> FIRST_AT) & 255).to(tl.int32)
        last = ((entry >> LAST_AT) & 255).to(tl.int32)
        amax = tl.load(amax_ptr + block // blocks_of_expert, mask=here, other=1.0)
        if blocks_of_group > 0:
            bits = _int4_bits(source_ptr, source_scale_ptr, block, here, blocks_of_group)
        else:
            bits = _bf16_bits(source_ptr, block, here)
        winner = _settled(bits, amax, first, last)
        tl.store(scale_ptr + block, winner.to(tl.uint8), mask=here)
        undecided = (here & (winner == UNDECIDED)).to(tl.int32)
        count = tl.sum(undecided)
        if count > 0:
            slot = tl.atomic_add(undecided_length_ptr, count) + tl.cumsum(undecided) - 1
            tl.store(undecided_ptr + slot, first_block + block, mask=(undecided > 0) & (slot < capacity))
