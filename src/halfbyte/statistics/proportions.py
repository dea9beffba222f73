"""Intervals and tests for proportions, single and paired.

Our own, because statsmodels lacks Tango's interval, its Wilson interval does not end exactly at 0 and 1, and importing
it (with pandas) takes longer than these functions; tests/golden/statistics.json compares the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from halfbyte.statistics.distributions import normal_quantile

CONFIDENCE = 0.95
_HALVINGS = 100


def wilson(successes: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's interval of a proportion, which is also valid for 0 of n.

    `successes` may be a sum of scores between 0 and 1. Their variance is smaller than that of binary scores with the
    same mean, so the interval is then conservative.
    """
    if not count:
        return 0.0, 1.0
    z = normal_quantile((1 + confidence) / 2)
    share, z2 = successes / count, z * z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    # The ends are exact at 0 and n, without rounding errors.
    return (0.0 if successes == 0 else middle - half, 1.0 if successes == count else middle + half)


def sign_test(worse: int, better: int) -> float:
    """Return the one-sided p-value of the sign test: at least `worse` of the differing pairs by chance.

    Equal pairs are ignored.
    """
    throws = worse + better
    ways = math.comb(throws, worse)
    tail = ways
    for heads in range(worse, throws):  # each binomial coefficient from the previous one: exact and fast
        ways = ways * (throws - heads) // (heads + 1)
        tail += ways
    return tail / 2**throws


def mcnemar(worse: int, better: int) -> float:
    """Return the exact two-sided p-value of McNemar's test."""
    return min(1.0, 2 * sign_test(max(worse, better), min(worse, better)))


def mcnemar_mid_p(worse: int, better: int) -> float:
    """Return McNemar's mid-p value, which is less conservative than the exact test."""
    throws = worse + better
    return min(1.0, mcnemar(worse, better) - math.comb(throws, worse) / 2**throws) if worse != better else 1.0


def tango(better: int, worse: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Tango's score interval of (better - worse) / count, a paired difference of proportions.

    Its ends are the differences at which the score test starts to reject. It has a width even if no pair differs.
    """
    z = normal_quantile((1 + confidence) / 2)
    seen = (better - worse) / count
    low = -1.0 if seen <= -1 else _crossing(lambda end: _tango_score(better, worse, count, end) - z, -1.0, seen)
    high = 1.0 if seen >= 1 else _crossing(lambda end: _tango_score(better, worse, count, end) + z, seen, 1.0)
    return low, high


def _tango_score(better: int, worse: int, count: int, difference: float) -> float:
    """Return the score statistic of the observed difference under the hypothesis `difference`."""
    # The maximum likelihood share of "worse" pairs under that difference solves a quadratic equation.
    b = -better - worse + (2 * count - better + worse) * difference
    c = -worse * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 8 * count * c)) - b) / (4 * count)
    variance = count * (2 * share + difference * (1 - difference))
    distance = better - worse - count * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def _crossing(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a decreasing function."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2
