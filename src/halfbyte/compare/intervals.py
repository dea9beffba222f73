"""Confidence intervals of means over tokens, from a studentized bootstrap over documents.

Tokens of one document are correlated, so an interval over tokens would be far too narrow. The bootstrap resamples whole
documents, and each resample is divided by its own standard error. KL has a long tail: in simulations with 20
long-tailed documents, the percentile interval and Student's t cover the mean in 83 % of cases, this interval in 91 %.
If only a few documents differ at all (a top-1 agreement of 98 %), 50 documents are needed for 95 %.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.evidence.comparison import Estimate

Sums = NDArray[Any]  # [D], one per document

CONFIDENCE = 0.95
FEWEST = 10  # documents needed for an interval
RESAMPLES = 2000
SEED = 20260801
_LEAST_SPREAD = 0.1  # lower bound relative to the sample's: resamples of nearly equal documents would be extreme
_AT_ONCE = 1 << 22  # resampling weights in memory


def ratio(above: Sums, below: Sums, limits: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """Estimate sum(above) / sum(below) from sums by document: a mean over tokens if `below` counts tokens.

    The interval is clipped to `limits`, the possible range of the value.
    """
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    count = len(above)
    if not count or not below.sum():
        return Estimate(math.nan)
    value = float(above.sum() / below.sum())
    if count < FEWEST:
        return Estimate(value)
    spread = float(_spread(np.ones((1, count)), above, below, np.array([value]))[0])
    if spread == 0:  # all documents agree
        return Estimate(value, value, value)
    low, high = np.quantile(_studentized(above, below, value, spread), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value, max(limits[0], value - float(high) * spread), min(limits[1], value - float(low) * spread))


def _studentized(above: Sums, below: Sums, value: float, spread: float) -> NDArray[np.float64]:
    """Return the deviation of each resample from the sample, in units of its own standard error."""
    random, count = np.random.default_rng(SEED), len(above)
    deviations: list[NDArray[np.float64]] = []
    step = max(1, _AT_ONCE // count)
    for start in range(0, RESAMPLES, step):
        size = min(step, RESAMPLES - start)
        weights = random.multinomial(count, np.full(count, 1 / count), size).astype(np.float64)
        weights = weights[weights @ below > 0]
        values = (weights @ above) / (weights @ below)
        own = _spread(weights, above, below, values)
        deviations.append((values - value) / np.maximum(own, _LEAST_SPREAD * spread))
    return np.concatenate(deviations)


def _spread(weights: NDArray[np.float64], above: Sums, below: Sums, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard error of the ratio in each resample from the documents' residuals."""
    residuals = above[None, :] - values[:, None] * below[None, :]
    count = len(above)
    return np.sqrt((weights * residuals**2).sum(axis=1) * count / (count - 1)) / (weights @ below)
