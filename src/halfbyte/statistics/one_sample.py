"""The accuracy of one model on one task, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from halfbyte.statistics.proportions import CONFIDENCE, wilson
from halfbyte.statistics.sampling import (
    Interval,
    clusters_of,
    mean_of_clusters,
    mean_over_clusters,
    mean_over_items,
    scores,
)


@dataclass(frozen=True)
class Accuracy:
    """An accuracy as a fraction. Clustered fields are None without clusters."""

    items: int
    value: float
    standard_error: float | None
    """sd / sqrt(n) with ddof 1, as in lm-eval and on model cards; 0 for 0 of n, so it gives no valid interval."""
    wilson: Interval
    clusters: int | None = None
    clustered_error: float | None = None
    clustered: Interval | None = None
    macro: float | None = None
    """The mean of the cluster means."""
    macro_error: float | None = None

    @property
    def interval(self) -> Interval:
        """The interval to quote: the clustered one, or Wilson's if clusters are missing or do not differ."""
        return self.clustered if self.clustered and self.clustered_error else self.wilson

    def as_dict(self) -> dict[str, Any]:
        """Return the accuracy for JSON."""
        return {**asdict(self), "interval": self.interval, "confidence": CONFIDENCE}

    def sentence(self) -> str:
        """Return the accuracy as a sentence."""
        low, high = self.interval
        by = f"over {self.clusters} clusters" if self.interval is self.clustered else "Wilson"
        return f"{self.value:.2%} of {self.items:,} items (95 % interval {low:.2%} to {high:.2%}, {by})."


def accuracy(correct: ArrayLike, clusters: Sequence[Any] | NDArray[Any] | None = None) -> Accuracy:
    """Return the accuracy of scores between 0 and 1. `clusters` contains each item's subject."""
    values = scores(correct, "accuracy")
    mean = mean_over_items(values)
    error = None if math.isnan(mean.error) else mean.error
    total = float(values.sum())
    interval = wilson(round(total) if total.is_integer() else total, len(values))
    grouped = clusters_of(clusters, len(values))
    if grouped is None:
        return Accuracy(len(values), mean.value, error, interval)
    by_cluster, macro = mean_over_clusters(values, grouped), mean_of_clusters(values, grouped)
    low, high = by_cluster.interval(CONFIDENCE)
    return Accuracy(
        len(values),
        mean.value,
        error,
        interval,
        clusters=grouped.number,
        clustered_error=by_cluster.error,
        clustered=(max(0.0, low), min(1.0, high)),
        macro=macro.value,
        macro_error=macro.error,
    )
