"""Compare two models on the same items, in one run or over several seeds: difference, interval and verdict.

Most of the variance of accuracies comes from the choice of items, which is the same for both models. Only items on
which they disagree ("flips") distinguish them. The deciding method depends on the scores, and `method` names it:

binary scores       exact McNemar test for a difference, Tango's score interval for its size
fractional scores   (averages over seeds) Student's t over items; with fewer than 20 flips, one pseudo-flip each way is
                    added (Bonett and Price), because few flips do not estimate their own variance
with clusters       Student's t over clusters; with fewer than 20 flips or 10 clusters, or if flips cancel out within
                    clusters (less than half of the error over items is left), the wider of that and the above

The bootstrap (seeded, percentile, 10,000 resamples) and the unpaired z of model cards are reported too.

Over several seeds, a z from mean +- stdev of three runs gives a false alarm in 12 of 100 comparisons of a model with
itself, because three numbers do not estimate their variance well. These figures are only descriptive. The deciding test
(`decides`) is over items, each averaged over the seeds, which is both valid and more powerful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halfbyte.errors import UsageError
from halfbyte.statistics.distributions import normal_two_sided, t_above, t_two_sided
from halfbyte.statistics.proportions import (
    CONFIDENCE,
    mcnemar,
    mcnemar_mid_p,
    sign_test,
    tango,
)
from halfbyte.statistics.results import Interval, NonInferiority, OverSeeds, PairedScores, SeedScores
from halfbyte.statistics.sampling import (
    Clusters,
    Mean,
    Scores,
    bootstrap,
    clusters_of,
    mean_over_clusters,
    mean_over_items,
    scores,
)
from halfbyte.statistics.verdicts import ALPHA, MARGIN, verdict

FEW_FLIPS = 20
FEW_CLUSTERS = 10
LEAST_SPREAD = 0.25  # of the variance over items, i.e. half the error
_DIGITS = 12  # smaller differences of averages over seeds are rounding errors
_ONE_SIDED = 1 - 2 * ALPHA  # two-sided confidence with one-sided 95 % bounds as ends


class _Decision(NamedTuple):
    """The deciding intervals and p-values, with their method."""

    method: str
    interval: Interval
    bounds: Interval
    p_value: float
    p_worse: float
    spread: float


def paired(
    correct_a: ArrayLike,
    correct_b: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> PairedScores:
    """Compare a candidate's scores (a) with a reference's (b) on the same items in the same order.

    Scores are between 0 and 1 and may be averages over seeds. `clusters` contains each item's subject.
    """
    a, b = scores(correct_a, "candidate"), scores(correct_b, "reference")
    if len(a) != len(b):
        raise UsageError(
            f"{len(a)} scores of the candidate but {len(b)} of the reference", fix="score both on the same items"
        )
    differences = np.round(a - b, _DIGITS)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    grouped = clusters_of(clusters, len(a))
    is_binary = bool(np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all())
    decision = _decide(differences, is_binary, grouped)
    z = _unpaired_z(mean_over_items(a), mean_over_items(b))
    difference = float(differences.mean())
    return PairedScores(
        items=len(a),
        candidate=float(a.mean()),
        reference=float(b.mean()),
        difference=difference,
        better=better,
        worse=worse,
        interval=decision.interval,
        p_value=decision.p_value,
        method=decision.method,
        mcnemar_p=mcnemar(worse, better) if is_binary else None,
        mcnemar_mid_p=mcnemar_mid_p(worse, better) if is_binary else None,
        tango=tango(better, worse, len(a)) if is_binary else None,
        bootstrap=bootstrap(differences, grouped, CONFIDENCE, seed),
        bootstrap_seed=seed,
        clusters=grouped.number if grouped else None,
        unpaired_z=z,
        unpaired_p=None if z is None else normal_two_sided(z),
        verdict=_judge(differences, decision, margin),
        flips=(better + worse) / len(a),
        confidence=CONFIDENCE,
    )


def judge_differences(
    differences: Scores, *, is_binary: bool, clusters: Clusters | None = None, margin: float = MARGIN
) -> NonInferiority:
    """Return the verdict of `paired` for differences (candidate - reference) by item."""
    return _judge(differences, _decide(differences, is_binary, clusters), margin)


def _judge(differences: Scores, decision: _Decision, margin: float) -> NonInferiority:
    difference = float(differences.mean())
    return verdict(difference, decision.bounds, decision.p_worse, len(differences), decision.spread, margin)


def _decide(differences: Scores, is_binary: bool, clusters: Clusters | None) -> _Decision:
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    decision = _by_items(differences, better, worse, is_binary)
    return decision if clusters is None else _by_clusters(differences, clusters, decision, better + worse)


def _by_items(differences: Scores, better: int, worse: int, is_binary: bool) -> _Decision:
    """Decide with items as the unit."""
    count = len(differences)
    spread = float(np.square(differences).mean())
    if is_binary:
        interval, bounds = tango(better, worse, count), tango(better, worse, count, _ONE_SIDED)
        return _Decision(
            "exact McNemar, Tango", interval, bounds, mcnemar(worse, better), sign_test(worse, better), spread
        )
    if better + worse >= FEW_FLIPS:
        return _by_mean("t over items", mean_over_items(differences), spread)
    padded = mean_over_items(np.concatenate([differences, [1.0, -1.0]]))
    return _by_mean("t over items with one pseudo-flip each way", padded, spread)


def _by_clusters(differences: Scores, clusters: Clusters, items: _Decision, flips: int) -> _Decision:
    """Decide with clusters as the unit. With few flips or clusters, use the wider of both intervals."""
    mean = mean_over_clusters(differences, clusters)
    by_clusters = _by_mean(f"t over {clusters.number} clusters", mean, len(differences) * mean.error**2)
    balanced = by_clusters.spread < LEAST_SPREAD * items.spread  # flips cancel out within clusters by chance
    if flips >= FEW_FLIPS and clusters.number >= FEW_CLUSTERS and not balanced:
        return by_clusters
    return _Decision(
        f"the wider of {by_clusters.method} and {items.method}",
        _hull(by_clusters.interval, items.interval),
        _hull(by_clusters.bounds, items.bounds),
        max(by_clusters.p_value, items.p_value),
        max(by_clusters.p_worse, items.p_worse),
        max(by_clusters.spread, items.spread),
    )


def _by_mean(method: str, mean: Mean, spread: float) -> _Decision:
    interval, bounds = (_within(mean.interval(confidence)) for confidence in (CONFIDENCE, _ONE_SIDED))
    p_worse = t_above(-mean.t, mean.freedom) if mean.freedom >= 1 else 1.0
    return _Decision(method, interval, bounds, mean.p_value, p_worse, spread)


def _unpaired_z(a: Mean, b: Mean) -> float | None:
    error = math.hypot(a.error, b.error)
    return (a.value - b.value) / error if error > 0 else None  # the error of a single item is NaN


def _hull(first: Interval, second: Interval) -> Interval:
    return min(first[0], second[0]), max(first[1], second[1])


def _within(interval: Interval) -> Interval:
    return max(-1.0, interval[0]), min(1.0, interval[1])


def over_seeds(
    by_seed_a: ArrayLike,
    by_seed_b: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> OverSeeds:
    """Compare a candidate's scores (a) with a reference's (b): one row per seed, one column per item, same order."""
    a, b = np.asarray(by_seed_a, np.float64), np.asarray(by_seed_b, np.float64)
    if a.ndim != 2 or a.shape != b.shape or len(a) < 2:  # noqa: PLR2004
        raise UsageError(
            f"scores by seed have shapes {a.shape} and {b.shape}: both must be seeds x items, with at least two seeds",
            fix="run both models with the same seeds on the same items; for one seed use the paired comparison",
        )
    for model, whose in ((a, "candidate"), (b, "reference")):
        scores(model.ravel(), whose)
    first, second = _of_model(a), _of_model(b)
    z, freedom = welch((first.mean, first.stdev), (second.mean, second.stdev), len(a))
    small, _ = welch((first.mean, first.population_stdev), (second.mean, second.population_stdev), len(a))
    return OverSeeds(
        candidate=first,
        reference=second,
        z_sample=z,
        z_population=small,
        z_p=None if z is None else normal_two_sided(z),
        welch_p=None if z is None else t_two_sided(z, freedom),
        paired=paired(a.mean(axis=0), b.mean(axis=0), clusters, margin, seed),
    )


def welch(a: tuple[float, float], b: tuple[float, float], count: int) -> tuple[float | None, float]:
    """Return z of two (mean, deviation) pairs over `count` runs each, and Welch's degrees of freedom."""
    error = math.hypot(a[1], b[1]) / math.sqrt(count)
    if not error:
        return None, math.nan
    freedom = (count - 1) * (a[1] ** 2 + b[1] ** 2) ** 2 / (a[1] ** 4 + b[1] ** 4)
    return (a[0] - b[0]) / error, freedom


def _of_model(by_seed: NDArray[np.float64]) -> SeedScores:
    means = by_seed.mean(axis=1)
    if np.ptp(means) == 0:  # avoids rounding errors for equal runs
        return SeedScores(tuple(map(float, means)), float(means[0]), 0.0, 0.0)
    return SeedScores(tuple(map(float, means)), float(means.mean()), float(means.std(ddof=1)), float(means.std()))
