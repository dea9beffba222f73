"""Check whether the figures of a model card are consistent, by recomputing them within their rounding.

Figures are strings, "91.36" or "0.9360", because the digits show the rounding. An answer is one of

follows           some values that round to the printed figures give the printed result
possible          the result depends on unprinted figures, and the printed ones do not contradict it
does not follow   no values that round to the printed figures give the printed result
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from halfbyte.errors import UsageError
from halfbyte.statistics.sampling import Interval
from halfbyte.statistics.seeds import welch

Answer = Literal["follows", "possible", "does not follow"]

SAMPLE = "sample deviations, error of the mean"
POPULATION = "population deviations, error of the mean"
ONE_RUN = "sample deviations, not divided by the seeds"


@dataclass(frozen=True)
class Recomputed:
    """A printed figure, and the ranges recomputed from the other figures."""

    figure: str
    printed: str
    answer: Answer
    ranges: dict[str, Interval]
    """The range by method, within the rounding of the inputs."""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """Return the answer and the ranges as a sentence."""
        ways = "; ".join(f"{low:.4g} to {high:.4g} from {way}" for way, (low, high) in self.ranges.items())
        note = f" {self.note}" if self.note else ""
        return f"{self.figure} {self.printed}: {self.answer} ({ways}).{note}"


def check_standard_error(percent: str, items: int, error: str, *, is_group: bool = False) -> Recomputed:
    """Check a standard error such as "91.36 % ± 0.77": sqrt(p (1 - p) / (n - 1)), which is sd / sqrt(n) with ddof 1.

    `is_group` is for a mean over several subjects (MMLU). lm-eval pools the variances within subjects and ignores the
    variance between them. Its figure is therefore smaller, by an amount that depends on the subjects' scores.
    """
    shares = tuple(end / 100 for end in rounded(percent))
    ends = [100 * math.sqrt(share * (1 - share) / (items - 1)) for share in shares]
    if shares[0] < 0.5 < shares[1]:  # noqa: PLR2004  the error is largest at 0.5
        ends.append(50 / math.sqrt(items - 1))
    interval = min(ends), max(ends)
    answer: Answer = "follows" if _overlap(interval, rounded(error)) else "does not follow"
    note = ""
    if is_group and answer != "follows" and rounded(error)[0] <= interval[1]:
        answer, note = "possible", "lm-eval's error of a group ignores the variance between subjects."
    if is_group and answer == "does not follow":
        note = "It is larger than any pooling of subjects."
    return Recomputed(f"standard error of {percent} % of {items:,}", error, answer, {"p (1 - p)": interval}, note)


def check_share(percent: str, items: int) -> Recomputed:
    """Check that an integer number of correct answers rounds to the printed percentage."""
    low, high = (end / 100 * items for end in rounded(percent))
    whole = math.ceil(low - 1e-9)  # the ends are included
    answer: Answer = "follows" if whole <= high + 1e-9 else "does not follow"
    ways: dict[str, Interval] = {f"{whole} right": (100 * whole / items, 100 * whole / items)}
    if answer != "follows":
        ways = {"its neighbours": (100 * math.floor(low) / items, 100 * math.ceil(high) / items)}
    return Recomputed(f"share of {items:,}", percent, answer, ways)


def check_seeds_z(candidate: tuple[str, str], reference: tuple[str, str], seeds: int, z: str) -> Recomputed:
    """Check the z of two printed "mean ± stdev", assuming sample deviations.

    The note names other methods that give the printed z. They explain it, but do not make it correct.
    """
    of_mean = _z_range(candidate, reference, seeds)
    # The population deviation of the same runs is smaller by sqrt((n - 1) / n), so its z is larger by the inverse.
    larger, smaller = math.sqrt(seeds / (seeds - 1)), 1 / math.sqrt(seeds)
    ranges: dict[str, Interval] = {
        SAMPLE: of_mean,
        POPULATION: (of_mean[0] * larger, of_mean[1] * larger),
        ONE_RUN: (of_mean[0] * smaller, of_mean[1] * smaller),
    }
    printed = rounded(z)
    answer: Answer = "follows" if _overlap(ranges[SAMPLE], printed) else "does not follow"
    others = [way for way, interval in ranges.items() if way != SAMPLE and _overlap(interval, printed)]
    note = f"It follows from {' or '.join(others)}." if others and answer != "follows" else ""
    return Recomputed("z", z, answer, ranges, note)


def rounded(text: str) -> Interval:
    """Return the lowest and highest number that rounds to the text."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{text!r} is not a finite number", fix='pass its digits as a string, e.g. "0.9360"') from None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise UsageError(f"{text!r} is not a finite number", fix='pass its digits as a string, e.g. "0.9360"')
    half = Decimal(5).scaleb(exponent - 1)
    return float(number - half), float(number + half)


def _z_range(candidate: tuple[str, str], reference: tuple[str, str], seeds: int) -> Interval:
    """Return the lowest and highest |z| within the rounding of means and deviations."""
    (a_low, a_high), (b_low, b_high) = rounded(candidate[0]), rounded(reference[0])
    gaps = abs(a_low - b_high), abs(a_high - b_low)
    least = 0.0 if a_low <= b_high and b_low <= a_high else min(gaps)
    small, large = ([max(0.0, rounded(side[1])[end]) for side in (candidate, reference)] for end in (0, 1))
    lowest, _ = welch((least, large[0]), (0.0, large[1]), seeds)
    highest, _ = welch((max(gaps), small[0]), (0.0, small[1]), seeds)
    return lowest or 0.0, math.inf if highest is None else highest


def _overlap(first: Interval, second: Interval) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]
