"""Shares of a count: how sure they are, and whether one of two is larger where both were asked the same."""

from __future__ import annotations

import math
from collections.abc import Callable

from halfbyte.validate.statistics.distributions import normal_quantile

CONFIDENCE = 0.95
_HALVINGS = 100


def wilson(found: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's interval of a share; unlike share +- error, it is right for 0 of 64 as well.

    `found` may be a sum of scores between 0 and 1. They vary less than rights and wrongs of the same mean, so that the
    interval is then wider than it need be, never narrower.
    """
    if not count:
        return 0.0, 1.0
    z = normal_quantile((1 + confidence) / 2)
    share, z2 = found / count, z * z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    # At the ends the interval is closed; rounding must not leave 1e-18 there.
    return (0.0 if found == 0 else middle - half, 1.0 if found == count else middle + half)


def sign_test(worse: int, better: int) -> float:
    """Return how likely as many pairs as `worse`, or more, go that way when either way is a throw of a coin.

    Pairs that are alike say nothing. One-sided: the question is whether something became worse, not whether it changed.
    """
    throws = worse + better
    ways = math.comb(throws, worse)
    tail = ways
    for heads in range(worse, throws):  # each count of ways from the one before: exact, and fast for thousands of pairs
        ways = ways * (throws - heads) // (heads + 1)
        tail += ways
    return tail / 2**throws


def mcnemar(worse: int, better: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: did the model change for better or worse?"""
    return min(1.0, 2 * sign_test(max(worse, better), min(worse, better)))


def mcnemar_mid_p(worse: int, better: int) -> float:
    """Return McNemar's mid-p: half of what was seen counts as more extreme. Less cautious than the exact test."""
    throws = worse + better
    return min(1.0, mcnemar(worse, better) - math.comb(throws, worse) / 2**throws) if worse != better else 1.0


def tango(better: int, worse: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Tango's score interval of (better - worse) / count, a difference of shares over the same items.

    Its ends are the differences that the score test does not quite reject. It has a width even where no pair differs.
    """
    z = normal_quantile((1 + confidence) / 2)
    seen = (better - worse) / count
    low = -1.0 if seen <= -1 else _crossing(lambda end: _tango_score(better, worse, count, end) - z, -1.0, seen)
    high = 1.0 if seen >= 1 else _crossing(lambda end: _tango_score(better, worse, count, end) + z, seen, 1.0)
    return low, high


def _tango_score(better: int, worse: int, count: int, difference: float) -> float:
    """Return how many standard errors, as they would be if `difference` were true, what was seen lies above it."""
    # The likeliest share of "worse" pairs under that difference solves a quadratic equation.
    b = -better - worse + (2 * count - better + worse) * difference
    c = -worse * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 8 * count * c)) - b) / (4 * count)
    variance = count * (2 * share + difference * (1 - difference))
    distance = better - worse - count * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is 0."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
