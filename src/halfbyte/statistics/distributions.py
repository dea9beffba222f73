"""The normal distribution and Student's t.

Our own, because `bench` and `loops` need them in a plain installation and scipy is not a dependency of halfbyte;
tests/golden/statistics.json compares them with scipy. Student's t uses the continued fraction of the incomplete beta
function, which converges to full precision in a few dozen steps. Quantiles are computed by bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_TINY = 1e-300
_STEPS = 10_000  # about sqrt(df) are needed, so this is enough for hundreds of millions of items
_HALVINGS = 200


def normal_quantile(share: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(share)


def normal_two_sided(z: float) -> float:
    """Return the two-sided p-value of z under the standard normal distribution."""
    return math.erfc(abs(z) / math.sqrt(2))


def t_above(t: float, freedom: float) -> float:
    """Return the upper tail probability of Student's t with `freedom` degrees of freedom."""
    if math.isnan(t):
        return math.nan
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2
    return tail if t >= 0 else 1 - tail


def t_two_sided(t: float, freedom: float) -> float:
    """Return the two-sided p-value of t under Student's t."""
    return min(1.0, 2 * t_above(abs(t), freedom))


@lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t."""
    if share < 0.5:  # noqa: PLR2004
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while t_above(high, freedom) > 1 - share:
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_above(middle, freedom) > 1 - share else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, from the side where its continued fraction converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x > (a + 1) / (a + b + 2):
        return 1 - math.exp(log_front) * _continued_fraction(1 - x, b, a) / b
    return math.exp(log_front) * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function with Lentz's algorithm."""
    above, below = 1.0, 1 / _no_zero(1 - (a + b) * x / (a + 1))
    value = below
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for part in (even, odd):
            below = 1 / _no_zero(1 + part * below)
            above = _no_zero(1 + part / above)
            change = above * below
            value *= change
        if abs(change - 1) < 1e-16:  # noqa: PLR2004
            break
    return value


def _no_zero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY
