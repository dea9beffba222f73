"""Shares of a count: how sure they are, and whether one of two is larger where both were asked the same."""

from __future__ import annotations

import math

_Z = 1.959963984540054  # of a 95 % interval


def wilson(found: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share; unlike share +- error, it is right for 0 of 64 as well."""
    if not count:
        return 0.0, 1.0
    share, z2 = found / count, _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    # At the ends the interval is closed; rounding must not leave 1e-18 there.
    return (0.0 if found == 0 else middle - half, 1.0 if found == count else middle + half)


def sign_test(worse: int, better: int) -> float:
    """Return how likely as many pairs as `worse`, or more, go that way when either way is a throw of a coin.

    Pairs that are alike say nothing. One-sided: the question is whether something became worse, not whether it changed.
    """
    throws = worse + better
    tail = sum(math.comb(throws, heads) for heads in range(worse, throws + 1))
    return float(tail / 2**throws)
