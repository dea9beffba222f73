"""Shared code of both sweeps of NVFP4 block scales: candidate scales, FP32 losses, and certain winners.

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
additions may be fused or not. Blocks with closer contenders are listed for `sweep_exact`.
"""

import triton
import triton.language as tl

FIRST, LAST = tl.constexpr(1), tl.constexpr(126)  # E4M3 codes of the scales, ascending in value
EVENLY_SPACED = tl.constexpr(15)  # up to this code a scale is code * 2^-9; above, half of it is code - 8
UNDECIDED = tl.constexpr(0)
CODE_RANGE = tl.constexpr(2688.0)

CLOSE = tl.constexpr(1.0 + 2.0**-18)
TINY = tl.constexpr(2.0**-100)
_CODE_TO_VALUE = tl.constexpr(2.0**120)  # between E4M3's exponents and FP32's, with E4M3's mantissa on top of FP32's
_VALUE_TO_CODE = tl.constexpr(2.0**-120)
_MANTISSA_BELOW_E4M3 = tl.constexpr(20)
_A_BIT_LESS = tl.constexpr(1.0 - 2.0**-20)
_A_BIT_MORE = tl.constexpr(1.0 + 2.0**-20)
FP32_TO_HALVES = tl.constexpr(2.0**22)  # adding and subtracting it rounds to multiples of 0.5
FP64_TO_HALVES = tl.constexpr(2.0**51)

# Entries of the list: the block's number, and above it the first and the last scale that can win.
FIRST_AT, LAST_AT = tl.constexpr(40), tl.constexpr(48)


@triton.jit
def unit_of(amax):
    """Return (g, u, v) with amax * u * v = g in [1, 2); one power of two would not fit into FP32. 1 for a zero amax."""
    lift = tl.where(amax < 2.0**-60, 64, 0)
    lifted = amax * tl.where(amax < 2.0**-60, 2.0**64, 1.0)
    exponent = ((lifted.to(tl.int32, bitcast=True) >> 23) & 255) - 127 - lift
    half = exponent >> 1
    one = ((127 - half) << 23).to(tl.float32, bitcast=True)
    other = ((127 - (exponent - half)) << 23).to(tl.float32, bitcast=True)
    return tl.where(amax == 0.0, 1.0, amax * one * other), one, other


@triton.jit
def step_of(code, g):
    """v g of an E4M3 code. The code's bits are an FP32 number, 2^-120 times v; E4M3's subnormals are FP32's."""
    return (code << _MANTISSA_BELOW_E4M3).to(tl.float32, bitcast=True) * (g * _CODE_TO_VALUE)


@triton.jit
def code_at(value):
    """Return the largest E4M3 code whose value does not exceed this one (within about 1e-6)."""
    return (value * _VALUE_TO_CODE).to(tl.int32, bitcast=True) >> _MANTISSA_BELOW_E4M3


@triton.jit
def reciprocal_of(step):
    """Return slightly less than 1 / step, so that x is never just below a power of two, where rounding would fail."""
    return 1.0 / step * _A_BIT_LESS


@triton.jit
def square_of_distance(target, step, reciprocal, TO_HALVES: tl.constexpr):
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
def likely_scale(top, g):
    """Return the scale that maps the largest weight to about 6; its loss excludes most smaller scales."""
    return tl.minimum(tl.maximum(code_at(top / g * (1.03 / 6.0)), FIRST), LAST)


@triton.jit
def window(top, known, g):
    """Return the first and last scale that can win in a block; `known` is the loss of some scale."""
    unclipped = top - tl.sqrt(known * 1.0001 + 1e-30)
    first = code_at(tl.maximum(unclipped, 0.0) / g * (0.999 / 6.0)) + 1
    # The last that needs its 4: 3.5 v g < top, an exact comparison.
    last = tl.minimum(code_at(top / g * (_A_BIT_MORE / 3.5)), LAST)
    last = tl.where(3.5 * step_of(last, g) >= top, last - 1, last)
    # For small ones half may not be a scale: they can win up to the first that rounds all to 0.
    nothing = tl.minimum((top / g * (_A_BIT_LESS * 2048.0)).to(tl.int32), EVENLY_SPACED)
    nothing = tl.maximum(nothing, FIRST)
    nothing = tl.where(0.25 * step_of(nothing, g) < top, nothing + 1, nothing)
    nothing = tl.where(0.25 * step_of(nothing, g) < top, nothing + 1, nothing)
    last = tl.where(last < EVENLY_SPACED, tl.minimum(nothing, EVENLY_SPACED), last)
    return tl.minimum(first, LAST), last


@triton.jit
def keep_better(loss, code, best, second, winner):
    """Update the best scales; they come in ascending order, so with a strict comparison the smallest wins ties."""
    second = tl.minimum(second, tl.maximum(best, loss))
    winner = tl.where(loss < best, code, winner)
    return tl.minimum(best, loss), second, winner


@triton.jit
def record(block, here, sure, winner, first, last, scale_ptr, list_ptr, length_ptr):
    """Write the winners and list the blocks without a certain one."""
    tl.store(scale_ptr + block, tl.where(sure, winner, UNDECIDED).to(tl.uint8), mask=here)
    close = (here & (sure == 0)).to(tl.int32)
    count = tl.sum(close)
    if count > 0:
        place = tl.atomic_add(length_ptr, count) + tl.cumsum(close) - 1
        entry = block | (first.to(tl.int64) << FIRST_AT) | (last.to(tl.int64) << LAST_AT)
        tl.store(list_ptr + place, entry, mask=close > 0)
