"""GPTQ for NVFP4: compensate each column's rounding error in the columns that follow.

Rounding to nearest minimizes the error of each weight, but not of the output, because inputs are correlated: if x1 and
x2 rise together, a smaller w2 compensates a w1 that is too large. With the Hessian H = E[x x^T] of the inputs, the loss
of a row is (w - q) H (w - q)^T. As in GPTQ, columns are rounded one at a time, and the remaining columns are updated to
minimize the loss. U, upper triangular with U^T U = H^-1, contains all updates: after column j with the error
e = (w_j - q_j) / U_jj, w_k decreases by e * U_jk, and the loss increases by e^2.

Two details are specific to NVFP4. The scale of a block is chosen when the block is reached, from its updated weights:
each candidate is tried with the updates inside the block, and the one with the smallest added loss is used. Blocks are
processed by the diagonal of H, largest first, because later blocks have fewer columns left to compensate their errors.

Everything is FP64 in a defined order, without fused multiply-adds. Codes, scales and layout are ModelOpt's, so engines
need no changes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.formats.reference import floats
from halfbyte.formats.reference.floats import E2M1_VALUES, E4M3_VALUES, U8, Scalar
from halfbyte.formats.reference.nvfp4 import BLOCK, CODE_RANGE, ZERO_TENSOR_AMAX

F64 = NDArray[np.float64]

DAMPING = 0.01  # fraction of the mean of H's diagonal added to the diagonal, so that rare inputs keep some influence
# Candidates around the E4M3 code that maps the block's largest weight to 6: down to half of that scale, which clips
# large weights, and up to the scale that maps the largest weight to 4.
BELOW, ABOVE = 8, 6
FIRST, LAST = 1, 126
HEADROOM: Scalar = np.float32(2)  # updated weights can exceed the source's amax


class Factors(NamedTuple):
    """Inverse-Hessian factors: the order in which columns are rounded, and the updates of the other columns."""

    order: NDArray[np.int64]  # [K]: blocks stay together
    upper: F64  # [K, K], in that order


def tensor_scale(amax: Scalar) -> Scalar:
    """`weight_scale_2`: twice ModelOpt's, which only shifts E4M3 block scales by one exponent."""
    return np.float32(HEADROOM * ((np.float32(amax) if amax else ZERO_TENSOR_AMAX) / CODE_RANGE))


def damped(hessian: F64, damping: float = DAMPING) -> F64:
    """Return H with damping added to its diagonal; the identity is added if H is zero."""
    mean = np.trace(hessian) / len(hessian)
    return hessian + np.eye(len(hessian)) * (damping * mean if mean > 0 else 1.0)


def column_order(diagonal: F64) -> NDArray[np.int64]:
    """Return the order in which columns are rounded: blocks, and columns within blocks, by the diagonal of H."""
    by_block = diagonal.reshape(-1, BLOCK)
    blocks = np.argsort(-by_block.sum(axis=1), kind="stable")
    order = blocks[:, None] * BLOCK + np.argsort(-by_block[blocks], axis=1, kind="stable")
    return order.reshape(-1).astype(np.int64)


def factor(hessian: F64, damping: float = DAMPING) -> Factors:
    """Order the columns, and factor the inverse of H."""
    order = column_order(np.diag(hessian))
    # With J the reversal of all columns and J H J = L L^T, U = J L^-1 J: one factorization without inverting H.
    backward = order[::-1]
    lower = np.linalg.cholesky(damped(hessian, damping)[np.ix_(backward, backward)])
    inverse = np.linalg.solve(lower, np.eye(len(lower)))
    return Factors(order, np.ascontiguousarray(np.triu(inverse[::-1, ::-1]), np.float64))


def compensate(target: F64, factors: Factors, decode_scale_2: Scalar) -> tuple[U8, U8]:
    """Return packed codes [N, K/2] and E4M3 block scales [N, K/16] of targets [N, K]."""
    n, k = target.shape
    order, upper = factors
    left = target[:, order].astype(np.float64)
    code, scale = np.empty((n, k), np.uint8), np.empty((n, k // BLOCK), np.uint8)
    for begin in range(0, k, BLOCK):
        block = slice(begin, begin + BLOCK)
        chosen = _choose(left[:, block], upper[block, block], decode_scale_2)
        scale[:, order[begin] // BLOCK] = chosen
        step = _steps(chosen, decode_scale_2)
        for j in range(begin, begin + BLOCK):
            code[:, order[j]] = _code(left[:, j] / step)
            _round_column(left, j, upper, step)
    return floats.pack_nibbles(code), scale


def _steps(scale: U8, decode_scale_2: Scalar) -> F64:
    """Return the value of code 1, rounded to FP32 as in decoders."""
    return (E4M3_VALUES[scale] * np.float32(decode_scale_2)).astype(np.float64)


def _code(quotient: F64) -> U8:
    return (_magnitude(quotient) | ((quotient < 0).astype(np.uint8) << 3)).astype(np.uint8)


def _magnitude(quotient: F64) -> U8:
    """Nearest E2M1 code, ties to the even one; in FP64."""
    thresholds = floats.E2M1_THRESHOLDS.astype(np.float64)
    magnitude = np.abs(quotient)
    return (np.searchsorted(thresholds, magnitude) + np.isin(magnitude, thresholds[1::2])).astype(np.uint8)


def _value(weight: F64, step: F64) -> F64:
    quotient = weight / step
    value = E2M1_VALUES[_magnitude(quotient)].astype(np.float64) * step
    return np.where(quotient < 0, -value, value)


def _choose(block: F64, upper: F64, decode_scale_2: Scalar) -> U8:
    """Return for each row the scale with the smallest added loss; the smallest scale on ties."""
    largest = np.abs(block).max(axis=1)
    wanted = (largest / (6.0 * np.float64(decode_scale_2))).clip(2.0**-9, 448.0).astype(np.float32)
    middle = floats.e4m3_encode(wanted).astype(np.int64)
    best, winner = np.full(len(block), np.inf), np.ones(len(block), np.uint8)
    for offset in range(-BELOW, ABOVE + 1):
        scale = (middle + offset).clip(FIRST, LAST).astype(np.uint8)
        loss = _added_loss(block, upper, _steps(scale, decode_scale_2))
        better = loss < best
        best, winner = np.where(better, loss, best), np.where(better, scale, winner)
    return winner


def _added_loss(block: F64, upper: F64, step: F64) -> F64:
    left = np.array(block)
    losses = [_round_column(left, j, upper, step) for j in range(BLOCK)]
    loss = np.zeros(len(block))
    for added in losses:  # in order: np.sum uses pairwise summation
        loss = loss + added
    return loss


def _round_column(left: F64, j: int, upper: F64, step: F64) -> F64:
    """Round a column, update the remaining ones, and return the added loss."""
    error = (left[:, j] - _value(left[:, j], step)) / upper[j, j]
    left[:, j + 1 :] -= error[:, None] * upper[j, j + 1 :]
    return error * error
