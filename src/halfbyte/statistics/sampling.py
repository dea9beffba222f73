"""The mean of scores and its sampling error: over items, over clusters, by bootstrap; and the accuracy of one model.

Items of one subject are correlated, so an error over items is too small. With clusters, whole subjects are the sampling
unit: a cluster-robust error, and Student's t with (clusters - 1) degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halfbyte.errors import UsageError
from halfbyte.statistics.distributions import t_quantile, t_two_sided
from halfbyte.statistics.proportions import CONFIDENCE, wilson
from halfbyte.statistics.results import Accuracy, Interval

Scores = NDArray[np.float64]  # [n], between 0 and 1

RESAMPLES = 10_000
_AT_ONCE = 1 << 22  # resampling weights in memory at a time


class Mean(NamedTuple):
    """A mean, its standard error, and the degrees of freedom of the error."""

    value: float
    error: float
    freedom: int

    def interval(self, confidence: float) -> Interval:
        """Return Student's interval, which is infinite without degrees of freedom."""
        if self.freedom < 1:
            return -math.inf, math.inf
        half = t_quantile((1 + confidence) / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def t(self) -> float:
        """The t statistic of the mean."""
        if self.error > 0:
            return self.value / self.error
        return math.copysign(math.inf, self.value) if self.value else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided p-value of a zero mean."""
        return t_two_sided(self.t, self.freedom) if self.freedom >= 1 else 1.0


class Clusters(NamedTuple):
    """The cluster number of each item, and the size of each cluster."""

    of_item: NDArray[np.intp]
    sizes: NDArray[np.intp]

    @property
    def number(self) -> int:
        """Number of clusters."""
        return len(self.sizes)


def scores(values: ArrayLike, whose: str) -> Scores:
    """Return the scores as an array. Raise if they are invalid."""
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size:
        raise UsageError(f"{whose}: scores must be a non-empty list of numbers, one per item", fix="run the suite")
    if not (np.isfinite(array).all() and (array >= 0).all() and (array <= 1).all()):
        raise UsageError(
            f"{whose}: every score must be between 0 and 1", fix="omit failed items and count them as errors"
        )
    return array


def clusters_of(labels: Sequence[Any] | NDArray[Any] | None, count: int) -> Clusters | None:
    """Number the clusters. Return None with fewer than two."""
    if labels is None:
        return None
    names = np.asarray(labels)
    if names.shape != (count,):
        raise UsageError(f"{names.size} cluster names for {count} items", fix="pass one cluster name per item")
    _, of_item, sizes = np.unique(names, return_inverse=True, return_counts=True)
    return Clusters(of_item, sizes) if len(sizes) > 1 else None


def mean_over_items(values: Scores) -> Mean:
    """Return the mean and its error sd / sqrt(n), with the sample deviation (ddof 1)."""
    count = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Mean(float(values.mean()), error, count - 1)


def mean_over_clusters(values: Scores, clusters: Clusters) -> Mean:
    """Return the mean over items, with a cluster-robust error."""
    value, count = float(values.mean()), clusters.number
    rest = np.bincount(clusters.of_item, values - value, minlength=count)
    error = math.sqrt(count / (count - 1) * float(rest @ rest)) / len(values)
    return Mean(value, error, count - 1)


def mean_of_clusters(values: Scores, clusters: Clusters) -> Mean:
    """Return the macro mean, in which every cluster has the same weight."""
    return mean_over_items(np.bincount(clusters.of_item, values, minlength=clusters.number) / clusters.sizes)


def bootstrap(values: Scores, clusters: Clusters | None, confidence: float, seed: int) -> Interval:
    """Return the percentile bootstrap interval of the mean, resampling items or whole clusters.

    Items are grouped by value, and a resample draws the count of each value. This is equivalent to drawing single
    items, and its time does not depend on their number.
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
    """Return sum / count of each resample. `parts` has both for each kind."""
    random = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    step = max(1, _AT_ONCE // len(shares))
    for start in range(0, RESAMPLES, step):
        drawn = random.multinomial(draws, shares, min(step, RESAMPLES - start)).astype(np.float64) @ parts
        means.append(drawn[:, 0] / drawn[:, 1])
    return np.concatenate(means)


def accuracy(correct: ArrayLike, clusters: Sequence[Any] | NDArray[Any] | None = None) -> Accuracy:
    """Return the accuracy of scores between 0 and 1. `clusters` contains each item's subject."""
    values = scores(correct, "accuracy")
    mean = mean_over_items(values)
    error = None if math.isnan(mean.error) else mean.error
    total = float(values.sum())
    interval = wilson(round(total) if total.is_integer() else total, len(values))
    grouped = clusters_of(clusters, len(values))
    by_items = Accuracy(
        items=len(values),
        value=mean.value,
        standard_error=error,
        wilson=interval,
        interval=interval,
        confidence=CONFIDENCE,
    )
    if grouped is None:
        return by_items
    by_cluster, macro = mean_over_clusters(values, grouped), mean_of_clusters(values, grouped)
    low, high = by_cluster.interval(CONFIDENCE)
    clustered = (max(0.0, low), min(1.0, high))
    return replace(
        by_items,
        clusters=grouped.number,
        clustered_error=by_cluster.error,
        clustered=clustered,
        macro=macro.value,
        macro_error=macro.error,
        interval=clustered if by_cluster.error else interval,
    )
