"""A mean over tokens, and how sure it is: the documents are what was drawn, not the tokens in them.

Tokens of one document fail together, so an interval over tokens would be far too narrow. The interval here is a
bootstrap over whole documents, studentized: each resample is judged by its own spread. KL has a long tail, and in
simulations the plain percentile interval and Student's t both miss its mean too often when documents are few: of 20
long-tailed documents they cover it in 83 % of all cases, this one in 91 %. Where only a few documents differ at all
(a top-1 agreement of 98 %), fifty are needed for 95 %.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[Any]  # [D], one a document

CONFIDENCE = 0.95
FEWEST = 10  # documents; below that, no interval is worth its name
RESAMPLES = 2000
SEED = 20260801
_LEAST_SPREAD = 0.1  # of the whole sample's: a resample of nearly equal documents would lie beyond all measure
_AT_ONCE = 1 << 22  # weights of resamples in memory


class Estimate(NamedTuple):
    """A number and its 95 % interval; None where there are too few documents for one."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return it for JSON."""
        return self._asdict()


def ratio(above: Sums, below: Sums, limits: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Estimate sum(above) / sum(below) from its parts by document: a mean over tokens where `below` counts them.

    The interval never leaves `limits`, which are what the number can be at all.
    """
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    count = len(above)
    if not count or not below.sum():
        return Estimate(math.nan)
    value = float(above.sum() / below.sum())
    if count < FEWEST:
        return Estimate(value)
    spread = float(_spread(np.ones((1, count)), above, below, np.array([value]))[0])
    if spread == 0:  # every document says the same
        return Estimate(value, value, value)
    low, high = np.quantile(_studentized(above, below, value, spread), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, max(limits[0], value - float(high) * spread), min(limits[1], value - float(low) * spread))


def _studentized(above: Sums, below: Sums, value: float, spread: float) -> NDArray[np.float64]:
    """Return how far each resample lies from the whole, in its own standard errors."""
    random, count = np.random.default_rng(SEED), len(above)
    found: list[NDArray[np.float64]] = []
    step = max(1, _AT_ONCE // count)
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        weights = random.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        there = weights @ below > 0
        weights = weights[there]
        values = (weights @ above) / (weights @ below)
        own = _spread(weights, above, below, values)
        found.append((values - value) / np.maximum(own, _LEAST_SPREAD * spread))
    return np.concatenate(found)


def _spread(weights: NDArray[np.float64], above: Sums, below: Sums, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard error of the ratio in each resample, by what each document adds to it."""
    rest = above[None, :] - values[:, None] * below[None, :]
    count = len(above)
    return np.sqrt((weights * rest**2).sum(axis=1) * count / (count - 1)) / (weights @ below)
