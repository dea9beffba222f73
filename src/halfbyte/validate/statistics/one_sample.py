"""One model on one task: its accuracy, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from halfbyte.validate.statistics.proportions import CONFIDENCE, wilson
from halfbyte.validate.statistics.sampling import (
    Interval,
    clusters_of,
    mean_of_clusters,
    mean_over_clusters,
    mean_over_items,
    scores,
)


@dataclass(frozen=True)
class Accuracy:
    """An accuracy in shares of 1. What needs clusters is None without them."""

    items: int
    value: float
    standard_error: float | None
    """sd / sqrt(n) with ddof 1, as lm-eval and the model cards have it; 0 for 0 of n, so no interval by itself."""
    wilson: Interval
    clusters: int | None = None
    clustered_error: float | None = None
    clustered: Interval | None = None
    macro: float | None = None
    """The mean in which every cluster counts alike."""
    macro_error: float | None = None

    @property
    def interval(self) -> Interval:
        """The interval to quote: the clustered one, or Wilson's where there are no clusters or they do not differ."""
        return self.clustered if self.clustered and self.clustered_error else self.wilson

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "interval": self.interval, "confidence": CONFIDENCE}

    def sentence(self) -> str:
        """Say it."""
        low, high = self.interval
        by = f"over {self.clusters} clusters" if self.interval is self.clustered else "Wilson"
        return f"{self.value:.2%} of {self.items:,} items (95 % interval {low:.2%} to {high:.2%}, {by})."


def accuracy(correct: ArrayLike, clusters: Sequence[Any] | NDArray[Any] | None = None) -> Accuracy:
    """Return the accuracy of scores between 0 and 1; `clusters` names each item's subject."""
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
