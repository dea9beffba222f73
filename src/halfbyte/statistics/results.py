"""Results of the statistics: what `halfbyte eval` and `halfbyte bench` write to their evidence files and print.

The evidence records embed these types. `sentence()` claims only what its numbers support. This module does not import
NumPy, so that readers of evidence start fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Interval = tuple[float, float]
Label = Literal["ACCEPT", "REGRESSION", "INCONCLUSIVE"]
Design = Literal["abba", "sequential"]
UNCONTROLLED = "drift and deployment variance are not controlled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """An accuracy as a fraction; clustered fields are null without clusters."""

    items: int
    value: float
    standard_error: float | None  # sd / sqrt(n), as in lm-eval and on model cards; 0 for 0 of n
    wilson: Interval
    clusters: int | None = None
    clustered_error: float | None = None
    clustered: Interval | None = None
    macro: float | None = None  # mean of the cluster means
    macro_error: float | None = None
    interval: Interval  # the 95 % interval to quote: clustered, or Wilson's if clusters are missing or do not differ
    confidence: float

    def sentence(self) -> str:
        """Return the accuracy as a sentence."""
        low, high = self.interval
        by = f"over {self.clusters} clusters" if self.interval is self.clustered else "Wilson"
        return f"{self.value:.2%} of {self.items:,} items (95 % interval {low:.2%} to {high:.2%}, {by})."


@dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """The verdict about candidate - reference, as fractions."""

    label: Label
    difference: float
    lower: float  # one-sided 95 % bound
    upper: float  # one-sided 95 % bound
    p_worse: float  # one-sided p-value of a loss
    margin: float
    significant_loss: bool
    beyond_margin: bool  # the upper bound is below minus the margin
    items: int
    items_if_no_loss: int | None = None  # for ACCEPT with 80 % power if there is no true loss; only for INCONCLUSIVE
    items_if_as_observed: int | None = None  # for a decision with 80 % power if the observed difference is true
    alpha: float
    power: float
    items_to_decide: int | None = None  # in either case

    def sentence(self) -> str:
        """Return the verdict as a sentence."""
        margin, lower, seen = f"{100 * self.margin:.2g} pp", _signed(self.lower), _signed(self.difference)
        if self.label == "ACCEPT":
            small = " A smaller loss is significant." if self.significant_loss else ""
            return f"ACCEPT: a loss of more than {margin} is ruled out ({seen}, one-sided 95 % bound {lower}).{small}"
        if self.label == "REGRESSION":
            size = f"more than {margin}" if self.beyond_margin else f"and more than {margin} is not ruled out"
            worse = f"worse by {size}" if self.beyond_margin else f"worse, {size}"
            return f"REGRESSION: the candidate is {worse} ({seen}, p = {self.p_worse:.2g} for no loss, bound {lower})."
        return (
            f"INCONCLUSIVE: {self.items:,} items neither show a loss nor rule out one of more than {margin} "
            f"({seen}, one-sided 95 % bound {lower}). About {self.items_to_decide:,} items would decide "
            f"({self.items_if_no_loss:,} if there is no loss, {self.items_if_as_observed:,} if as observed; 80 % "
            "power)."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScores:
    """Candidate - reference on the same items, as fractions; fields that do not apply are null."""

    items: int
    candidate: float
    reference: float
    difference: float
    better: int  # items on which the candidate scored more
    worse: int  # items on which the candidate scored less
    interval: Interval  # the deciding 95 % interval
    p_value: float  # two-sided, of no difference
    method: str
    mcnemar_p: float | None
    mcnemar_mid_p: float | None
    tango: Interval | None
    bootstrap: Interval
    bootstrap_seed: int
    clusters: int | None
    unpaired_z: float | None  # from two standard errors, as on model cards: too conservative for the same items
    unpaired_p: float | None
    verdict: NonInferiority
    flips: float  # share of items on which the models disagree (psi)
    confidence: float

    def sentence(self) -> str:
        """Return the difference and the verdict as sentences."""
        low, high = (f"{100 * end:+.2f}" for end in self.interval)
        return (
            f"{self.candidate:.2%} against {self.reference:.2%}: {100 * self.difference:+.2f} pp (95 % interval {low} "
            f"to {high} pp, p = {self.p_value:.2g}, {self.method}); {self.better:,} of {self.items:,} items better, "
            f"{self.worse:,} worse. {self.verdict.sentence()}"
        )


@dataclass(frozen=True, slots=True)
class SeedScores:
    """One model's accuracy by seed."""

    by_seed: tuple[float, ...]
    mean: float
    stdev: float  # sample deviation (divided by seeds - 1)
    population_stdev: float  # divided by seeds: too small


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """Candidate against reference over several seeds. Each z is (candidate - reference) / error, as on model cards."""

    candidate: SeedScores
    reference: SeedScores
    z_sample: float | None  # with sample deviations; null if all runs are equal
    z_population: float | None  # with population deviations: larger, and wrong for few runs
    z_p: float | None  # of z_sample under the normal distribution: too small with few seeds
    welch_p: float | None  # of z_sample under Student's t (Welch)
    paired: PairedScores  # over the average of the seeds; it decides

    def sentence(self) -> str:
        """Return the deciding result and the figures of a model card as sentences."""
        a, b, count = self.candidate, self.reference, len(self.candidate.by_seed)
        z = "no z (all runs are equal)"
        if self.z_sample is not None and self.welch_p is not None:
            z = f"z = {self.z_sample:+.2f} (p = {self.welch_p:.2g} by Student's t)"
        return (
            f"Averaged over {count} seeds, by items: {self.paired.sentence()} In model card form, for description "
            f"only: {a.mean:.4f} ± {a.stdev:.4f} against {b.mean:.4f} ± {b.stdev:.4f} (n={count}), {z}."
        )


def deciding(comparison: PairedScores | OverSeeds) -> PairedScores:
    """Return the comparison that decides: with several seeds, the one over their average."""
    return comparison.paired if isinstance(comparison, OverSeeds) else comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """A's throughput over B's."""

    design: Design
    ratio: float
    interval: Interval | None
    bootstrap: Interval | None  # percentile interval over pairs, for information: too narrow with few blocks
    units: tuple[int, int]  # blocks or server starts of each arm
    drift: float | None  # relative change over the run, from a linear fit to the logarithms of both arms
    drift_p: float | None
    no_claim_because: str  # why there is no headline
    confidence: float
    drift_significant: bool
    headline: str | None  # the claim that the data supports

    def sentence(self) -> str:
        """Return the headline, or why there is none, and the measurement as a sentence."""
        unit = "blocks" if self.design == "abba" else "server starts"
        seen = f"{self.ratio:.2f}x over {self.units[0]} and {self.units[1]} {unit}"
        if self.interval:
            seen = f"{seen} ({100 * self.confidence:.4g} % interval {self.interval[0]:.2f} to {self.interval[1]:.2f})"
        claim = f"throughput: {self.headline}" if self.headline else f"no claim: {self.no_claim_because}"
        drift = f" The speed drifted by {self.drift:+.1%} during the run." if self.drift_significant else ""
        caveat = f" Sequential runs: {UNCONTROLLED}." if self.design == "sequential" else ""
        return f"{claim}; {seen}.{drift}{caveat}"


def _signed(share: float) -> str:
    return f"{100 * share:+.2f} pp"
