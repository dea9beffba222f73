"""Several runs of two models, each with its seed: what the model cards print, and the test that decides.

Mean +- stdev of three runs and a z from it call a false alarm in 12 of 100 comparisons of a model with itself: three
numbers do not know their own spread. Here those figures are a description. The decision is made over items, each with
its average over the seeds (`decides`), which is both honest and sharper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from halfbyte.errors import UsageError
from halfbyte.validate.statistics.distributions import normal_two_sided, t_two_sided
from halfbyte.validate.statistics.noninferiority import MARGIN
from halfbyte.validate.statistics.pairs import Paired, paired
from halfbyte.validate.statistics.sampling import scores


@dataclass(frozen=True)
class SeedScores:
    """One model's accuracy by seed."""

    by_seed: tuple[float, ...]
    mean: float
    stdev: float
    """The sample's deviation (divided by seeds - 1): what "+- stdev" should mean."""
    population_stdev: float
    """Divided by the number of seeds; smaller, and too small."""


@dataclass(frozen=True)
class Seeds:
    """Candidate against reference over several seeds. Each z is (candidate - reference) / error, in the cards' form."""

    candidate: SeedScores
    reference: SeedScores
    z_sample: float | None
    """From sample deviations, the error of the mean. None where no run differs from another."""
    z_population: float | None
    """From population deviations, the error of the mean: larger, and not right for three runs."""
    z_p: float | None
    """Of z_sample by the normal distribution, as the cards read it: too small with few seeds."""
    welch_p: float | None
    """Of the same number by Student's t (Welch): the honest reading of it."""
    decides: Paired

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "decides": self.decides.as_dict()}

    def sentence(self) -> str:
        """Say what decides, then what a card would print."""
        a, b, count = self.candidate, self.reference, len(self.candidate.by_seed)
        z = "no z (no run differs from another)"
        if self.z_sample is not None and self.welch_p is not None:
            z = f"z = {self.z_sample:+.2f}, which by Student's t is p = {self.welch_p:.2g}"
        return (
            f"Over the average of {count} seeds, by items: {self.decides.sentence()} As cards print it, and only as a "
            f"description: {a.mean:.4f} ± {a.stdev:.4f} against {b.mean:.4f} ± {b.stdev:.4f} (n={count}), {z}."
        )


def over_seeds(
    by_seed_a: ArrayLike,
    by_seed_b: ArrayLike,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    margin: float = MARGIN,
    seed: int = 0,
) -> Seeds:
    """Compare a candidate's scores (a) with a reference's (b): a row a seed, a column an item, in the same order."""
    a, b = np.asarray(by_seed_a, np.float64), np.asarray(by_seed_b, np.float64)
    if a.ndim != 2 or a.shape != b.shape or len(a) < 2:  # noqa: PLR2004
        raise UsageError(
            f"scores by seed are {a.shape} and {b.shape}: both must be seeds x items, alike, and two seeds at least",
            fix="run both models with the same seeds on the same items; for one seed use the paired comparison",
        )
    for model, whose in ((a, "candidate"), (b, "reference")):
        scores(model.ravel(), whose)
    one, other = _of_model(a), _of_model(b)
    z, freedom = welch((one.mean, one.stdev), (other.mean, other.stdev), len(a))
    small, _ = welch((one.mean, one.population_stdev), (other.mean, other.population_stdev), len(a))
    return Seeds(
        one,
        other,
        z_sample=z,
        z_population=small,
        z_p=None if z is None else normal_two_sided(z),
        welch_p=None if z is None else t_two_sided(z, freedom),
        decides=paired(a.mean(axis=0), b.mean(axis=0), clusters, margin, seed),
    )


def welch(a: tuple[float, float], b: tuple[float, float], count: int) -> tuple[float | None, float]:
    """Return z of two (mean, deviation) over `count` runs each, and its degrees of freedom after Welch."""
    error = math.hypot(a[1], b[1]) / math.sqrt(count)
    if not error:
        return None, math.nan
    freedom = (count - 1) * (a[1] ** 2 + b[1] ** 2) ** 2 / (a[1] ** 4 + b[1] ** 4)
    return (a[0] - b[0]) / error, freedom


def _of_model(by_seed: NDArray[np.float64]) -> SeedScores:
    means = by_seed.mean(axis=1)
    if np.ptp(means) == 0:  # rounding must not make a spread of equal runs
        return SeedScores(tuple(map(float, means)), float(means[0]), 0.0, 0.0)
    return SeedScores(tuple(map(float, means)), float(means.mean()), float(means.std(ddof=1)), float(means.std()))
