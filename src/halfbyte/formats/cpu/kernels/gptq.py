"""GPTQ for NVFP4, bit-identical to reference.gptq.

Columns are processed in panels. Updates inside a panel are applied immediately, updates of all later columns once per
panel, in tiles that fit the cache. The products are subtracted from each weight in the same order, so results do not
depend on panels, tiles or threads.
"""

import numpy as np

from halfbyte.formats.cpu.kernels.jit import inlined, kernel
from halfbyte.formats.cpu.kernels.scalars import F, e4m3_code
from halfbyte.formats.reference.floats import E4M3_VALUES
from halfbyte.formats.reference.gptq import ABOVE, BELOW, FIRST, LAST

_BLOCK = 16
_PANEL = 128  # columns
_HALF_STEPS, _WHOLE_STEPS, _TOP = 2.0, 4.0, 6.0  # below these E2M1 has steps of 0.5 and of 1; above, of 2, up to 6
_TILE = 512  # columns of U per tile: half a megabyte


@inlined
def _magnitude(value):
    """Nearest E2M1 value in FP64, ties to the even code, saturating at 6."""
    step = 0.5 if value < _HALF_STEPS else (1.0 if value < _WHOLE_STEPS else 2.0)
    return min(np.rint(value / step) * step, _TOP)


@inlined
def _code_of(value):
    """Code of an exact E2M1 value."""
    return np.uint8(value * 2.0 if value < _HALF_STEPS else (value + 2.0 if value < _TOP else 7.0))


@kernel
def _added_loss(block, upper, step, limit, left):
    """Return the loss of a block under a scale; any value at or above the limit if it reaches the limit."""
    for j in range(_BLOCK):
        left[j] = block[j]
    loss = 0.0
    for j in range(_BLOCK):
        value = _magnitude(abs(left[j] / step)) * step
        error = (left[j] - (-value if left[j] < 0.0 else value)) / upper[j, j]
        loss += error * error
        if loss >= limit:
            break
        for k in range(j + 1, _BLOCK):
            left[k] -= error * upper[j, k]
    return loss


@kernel
def _choose(block, upper, scale_2, left):
    largest = 0.0
    for j in range(_BLOCK):
        largest = max(largest, abs(block[j]))
    wanted = min(max(largest / (6.0 * np.float64(scale_2)), 2.0**-9), 448.0)
    middle = np.int64(e4m3_code(F(wanted)))
    best, winner = np.inf, FIRST
    for scale in range(max(middle - BELOW, FIRST), min(middle + ABOVE, LAST) + 1):
        loss = _added_loss(block, upper, np.float64(E4M3_VALUES[scale] * scale_2), best, left)
        if loss < best:
            best, winner = loss, scale
    return winner


@kernel
def _round_panel(left, upper, scale_2, code, scale, error):
    """Round a panel of all rows: left [n, P] becomes errors [n, P], codes [n, P] and scales [n, P/16]."""
    scratch = np.empty(_BLOCK)
    width = left.shape[1]
    for r in range(left.shape[0]):
        row = left[r]
        for begin in range(0, width, _BLOCK):
            end = begin + _BLOCK
            chosen = _choose(row[begin:end], upper[begin:end, begin:end], scale_2, scratch)
            scale[r, begin // _BLOCK] = chosen
            step = np.float64(E4M3_VALUES[chosen] * scale_2)
            for j in range(begin, end):
                quotient = row[j] / step
                magnitude = _magnitude(abs(quotient))
                code[r, j] = _code_of(magnitude) | (np.uint8(8) if quotient < 0.0 else np.uint8(0))
                value = magnitude * step
                found = (row[j] - (-value if quotient < 0.0 else value)) / upper[j, j]
                error[r, j] = found
                for k in range(j + 1, width):
                    row[k] -= found * upper[j, k]


@kernel
def _move_on(left, error, upper):
    """Apply a panel's errors [n, P] to the columns after it, left [n, M], with upper [P, M]."""
    for start in range(0, left.shape[1], _TILE):
        tile = upper[:, start : start + _TILE]
        for r in range(left.shape[0]):
            row = left[r, start : start + _TILE]
            for j in range(0, error.shape[1], 4):  # a panel has whole blocks
                a, b, c, d = error[r, j], error[r, j + 1], error[r, j + 2], error[r, j + 3]
                ua, ub, uc, ud = tile[j], tile[j + 1], tile[j + 2], tile[j + 3]
                for k in range(row.size):
                    row[k] = (((row[k] - a * ua[k]) - b * ub[k]) - c * uc[k]) - d * ud[k]


@kernel
def compensate_rows(target, order, upper, scale_2, packed, scale):
    """Fill packed codes [n, K/2] and block scales [n, K/16] of FP64 targets [n, K]; upper is ordered like `order`."""
    n, k = target.shape
    left = np.empty((n, k))
    for r in range(n):
        for j in range(k):
            left[r, j] = target[r, order[j]]
    code, chosen, error = np.empty((n, k), np.uint8), np.empty((n, k // _BLOCK), np.uint8), np.empty((n, _PANEL))
    for begin in range(0, k, _PANEL):
        end = min(begin + _PANEL, k)
        blocks = slice(begin // _BLOCK, end // _BLOCK)
        here = error[:, : end - begin]
        _round_panel(
            left[:, begin:end], upper[begin:end, begin:end], scale_2, code[:, begin:end], chosen[:, blocks], here
        )
        _move_on(left[:, end:], here, upper[begin:end, end:])
    for r in range(n):
        for b in range(k // _BLOCK):
            scale[r, order[b * _BLOCK] // _BLOCK] = chosen[r, b]
        for j in range(k // 2):
            packed[r, j] = 0
        for j in range(k):
            at = order[j]
            packed[r, at // 2] |= code[r, j] << np.uint8(4 * (at % 2))
