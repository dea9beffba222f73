"""How far a mean would move with other items: standard errors over items and over clusters, and the bootstrap.

The unit is what was drawn. Items of one subject succeed and fail together, so an error over items is too small when the
question is about subjects; then whole subjects are the unit (a "cluster-robust" error, Student's t with one degree of
freedom less than there are clusters).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halfbyte.errors import UsageError
from halfbyte.validate.statistics.distributions import t_quantile, t_two_sided

Scores = NDArray[np.float64]  # [n], between 0 and 1
Interval = tuple[float, float]

RESAMPLES = 10_000
_AT_ONCE = 1 << 22  # weights of resamples in memory


class Mean(NamedTuple):
    """A mean, its standard error, and the degrees of freedom of that error."""

    value: float
    error: float
    freedom: int

    def interval(self, confidence: float) -> Interval:
        """Return Student's interval; without degrees of freedom nothing is known."""
        if self.freedom < 1:
            return -math.inf, math.inf
        half = t_quantile((1 + confidence) / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def t(self) -> float:
        """How many errors the mean lies from 0."""
        if self.error > 0:
            return self.value / self.error
        return math.copysign(math.inf, self.value) if self.value else 0.0

    @property
    def p_value(self) -> float:
        """How likely a mean this far from 0 is when the truth is 0."""
        return t_two_sided(self.t, self.freedom) if self.freedom >= 1 else 1.0


class Clusters(NamedTuple):
    """Which cluster each item belongs to, by number, and how many items each has."""

    of_item: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.sizes)


def scores(values: ArrayLike, whose: str) -> Scores:
    """Return the scores as an array, or say what is wrong with them."""
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or not found.size:
        raise UsageError(
            f"{whose}: scores must be a list of numbers, one an item, and at least one", fix="run the suite"
        )
    if not (np.isfinite(found).all() and (found >= 0).all() and (found <= 1).all()):
        raise UsageError(
            f"{whose}: every score must lie between 0 and 1", fix="leave out what failed and count it as an error"
        )
    return found


def clusters_of(labels: Sequence[Any] | NDArray[Any] | None, count: int) -> Clusters | None:
    """Number the clusters; None where there are none, or where one holds everything and so says nothing of others."""
    if labels is None:
        return None
    found = np.asarray(labels)
    if found.shape != (count,):
        raise UsageError(f"{found.size} cluster names for {count} items", fix="give each item the name of its subject")
    _, of_item, sizes = np.unique(found, return_inverse=True, return_counts=True)
    return Clusters(of_item, sizes) if len(sizes) > 1 else None


def mean_over_items(values: Scores) -> Mean:
    """Return the mean and its error as sd / sqrt(n), the sample's deviation (ddof 1)."""
    count = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Mean(float(values.mean()), error, count - 1)


def mean_over_clusters(values: Scores, clusters: Clusters) -> Mean:
    """Return the mean over items, with the error that clusters give it."""
    value, count = float(values.mean()), clusters.number
    rest = np.bincount(clusters.of_item, values - value, minlength=count)
    error = math.sqrt(count / (count - 1) * float(rest @ rest)) / len(values)
    return Mean(value, error, count - 1)


def mean_of_clusters(values: Scores, clusters: Clusters) -> Mean:
    """Return the mean in which every cluster counts alike, however many items it has ("macro")."""
    return mean_over_items(np.bincount(clusters.of_item, values, minlength=clusters.number) / clusters.sizes)


def bootstrap(values: Scores, clusters: Clusters | None, confidence: float, seed: int) -> Interval:
    """Return the percentile interval of the mean, from resampled items or, given clusters, whole clusters.

    Items of equal value are one kind, and a resample is how often it drew each kind: the same distribution as drawing
    items one by one, and as fast for ten thousand items as for ten.
    """
    if clusters is None:
        kinds, numbers = np.unique(values, return_counts=True)
        means = _resample(numbers / len(values), len(values), np.stack([kinds, np.ones(len(kinds))], 1), seed)
    else:
        sums = np.bincount(clusters.of_item, values, minlength=clusters.number).astype(np.float64)
        sizes = clusters.sizes.astype(np.float64)
        even = np.full(clusters.number, 1 / clusters.number)
        means = _resample(even, clusters.number, np.stack([sums, sizes], 1), seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _resample(shares: Scores, draws: int, parts: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return sum over count in each resample; `parts` has both for each kind."""
    random = np.random.default_rng(seed)
    found: list[NDArray[np.float64]] = []
    step = max(1, _AT_ONCE // len(shares))
    for start in range(0, RESAMPLES, step):
        drawn = random.multinomial(draws, shares, min(step, RESAMPLES - start)).astype(np.float64) @ parts
        found.append(drawn[:, 0] / drawn[:, 1])
    return np.concatenate(found)
