"""Compare two models over several seeds: the figures of model cards, and the deciding test.

A z from mean +- stdev of three runs gives a false alarm in 12 of 100 comparisons of a model with itself, because three
numbers do not estimate their variance well. Here these figures are only descriptive. The deciding test (`decides`) is
over items, each averaged over the seeds, which is both valid and more powerful.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halfbyte.errors import UsageError
from halfbyte.statistics.distributions import normal_two_sided, t_two_sided
from halfbyte.statistics.noninferiority import MARGIN
from halfbyte.statistics.pairs import Paired, paired
from halfbyte.statistics.sampling import scores


@dataclass(frozen=True)
class SeedScores:
    """One model's accuracy by seed."""

    by_seed: tuple[float, ...]
    mean: float
    stdev: float
    """Sample deviation (divided by seeds - 1)."""
    population_stdev: float
    """Population deviation (divided by seeds), which is too small."""


@dataclass(frozen=True)
class Seeds:
    """Candidate against reference over several seeds. Each z is (candidate - reference) / error, as on model cards."""

    candidate: SeedScores
    reference: SeedScores
    z_sample: float | None
    """From the error of the mean with sample deviations. None if all runs are equal."""
    z_population: float | None
    """From the error of the mean with population deviations: larger, and wrong for few runs."""
    z_p: float | None
    """p-value of z_sample under the normal distribution, as on model cards: too small with few seeds."""
    welch_p: float | None
    """p-value of z_sample under Student's t (Welch)."""
    decides: Paired

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {**asdict(self), "decides": self.decides.as_dict()}

    def sentence(self) -> str:
        """Return the deciding result and the figures of a model card as sentences."""
        a, b, count = self.candidate, self.reference, len(self.candidate.by_seed)
        z = "no z (all runs are equal)"
        if self.z_sample is not None and self.welch_p is not None:
            z = f"z = {self.z_sample:+.2f} (p = {self.welch_p:.2g} by Student's t)"
        return (
            f"Averaged over {count} seeds, by items: {self.decides.sentence()} In model card form, for description "
            f"only: {a.mean:.4f} ± {a.stdev:.4f} against {b.mean:.4f} ± {b.stdev:.4f} (n={count}), {z}."
        )


def over_seeds(
    by_seed_a: ArrayLike,
    by_seed_b: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Seeds:
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
    return Seeds(
        first,
        second,
        z_sample=z,
        z_population=small,
        z_p=None if z is None else normal_two_sided(z),
        welch_p=None if z is None else t_two_sided(z, freedom),
        decides=paired(a.mean(axis=0), b.mean(axis=0), clusters, margin, seed),
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
