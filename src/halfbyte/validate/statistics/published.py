"""Do the figures of a model card follow from each other? Recomputed from what it prints, with its rounding allowed for.

Figures are given as text, "91.36" or "0.9360", because the digits say how far they were rounded. An answer is one of

follows           some value that rounds to each printed figure gives the printed result
possible          the result needs figures that are not printed, and those that are do not speak against it
does not follow   no value that rounds to the printed figures gives the printed result
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from halfbyte.errors import UsageError
from halfbyte.validate.statistics.sampling import Interval
from halfbyte.validate.statistics.seeds import welch

Answer = Literal["follows", "possible", "does not follow"]

SAMPLE = "sample deviations, error of the mean"
POPULATION = "population deviations, error of the mean"
ONE_RUN = "sample deviations, not divided by the seeds"


@dataclass(frozen=True)
class Recomputed:
    """A printed figure, and what the other printed figures give for it."""

    figure: str
    printed: str
    answer: Answer
    ranges: dict[str, Interval]
    """What each way of computing it gives, from lowest to highest that the rounding of the inputs allows."""
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """Say whether it follows, and what would."""
        ways = "; ".join(f"{low:.4g} to {high:.4g} from {way}" for way, (low, high) in self.ranges.items())
        note = f" {self.note}" if self.note else ""
        return f"{self.figure} {self.printed}: {self.answer} ({ways}).{note}"


def check_standard_error(percent: str, items: int, error: str, *, is_group: bool = False) -> Recomputed:
    """Check "91.36 % ± 0.77" of so many items: sqrt(p (1 - p) / (n - 1)), which is sd / sqrt(n) with ddof 1.

    `is_group` is for a mean over several subjects (MMLU). There lm-eval pools the variances within subjects and leaves
    out what differs between them, so that its figure is smaller, by how much only the subjects' scores tell.
    """
    shares = tuple(end / 100 for end in rounded(percent))
    ends = [100 * math.sqrt(share * (1 - share) / (items - 1)) for share in shares]
    if shares[0] < 0.5 < shares[1]:  # noqa: PLR2004  where the error is largest
        ends.append(50 / math.sqrt(items - 1))
    found = min(ends), max(ends)
    answer: Answer = "follows" if _overlap(found, rounded(error)) else "does not follow"
    note = ""
    if is_group and answer != "follows" and rounded(error)[0] <= found[1]:
        answer, note = "possible", "lm-eval's error of a group leaves out what differs between subjects."
    if is_group and answer == "does not follow":
        note = "It is larger than any pooling of subjects gives."
    return Recomputed(f"standard error of {percent} % of {items:,}", error, answer, {"p (1 - p)": found}, note)


def check_share(percent: str, items: int) -> Recomputed:
    """Check that some whole number of right answers rounds to the printed percentage."""
    low, high = (end / 100 * items for end in rounded(percent))
    whole = math.ceil(low - 1e-9)  # the ends themselves count
    answer: Answer = "follows" if whole <= high + 1e-9 else "does not follow"
    ways: dict[str, Interval] = {f"{whole} right": (100 * whole / items, 100 * whole / items)}
    if answer != "follows":
        ways = {"its neighbours": (100 * math.floor(low) / items, 100 * math.ceil(high) / items)}
    return Recomputed(f"share of {items:,}", percent, answer, ways)


def check_seeds_z(candidate: tuple[str, str], reference: tuple[str, str], seeds: int, z: str) -> Recomputed:
    """Check the z of two printed "mean ± stdev" over so many seeds, reading the deviations as samples'.

    Other ways that give the printed z are named in the note; they explain it, they do not make it right.
    """
    of_mean = _z_range(candidate, reference, seeds)
    # A population deviation of the same runs is smaller by sqrt((n - 1) / n), its z larger by the inverse.
    larger, smaller = math.sqrt(seeds / (seeds - 1)), 1 / math.sqrt(seeds)
    ranges: dict[str, Interval] = {
        SAMPLE: of_mean,
        POPULATION: (of_mean[0] * larger, of_mean[1] * larger),
        ONE_RUN: (of_mean[0] * smaller, of_mean[1] * smaller),
    }
    printed = rounded(z)
    answer: Answer = "follows" if _overlap(ranges[SAMPLE], printed) else "does not follow"
    others = [way for way, found in ranges.items() if way != SAMPLE and _overlap(found, printed)]
    note = f"What gives it: {' or '.join(others)}." if others and answer != "follows" else ""
    return Recomputed("z", z, answer, ranges, note)


def rounded(text: str) -> Interval:
    """Return the lowest and highest number that is printed so."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise UsageError(f"{text!r} is no printed number", fix='give its digits as text, like "0.9360"') from None
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        raise UsageError(f"{text!r} is no printed number", fix='give its digits as text, like "0.9360"')
    half = Decimal(5).scaleb(exponent - 1)
    return float(number - half), float(number + half)


def _z_range(candidate: tuple[str, str], reference: tuple[str, str], seeds: int) -> Interval:
    """Return the lowest and highest |z| that the rounding of means and deviations allows."""
    (a_low, a_high), (b_low, b_high) = rounded(candidate[0]), rounded(reference[0])
    gaps = abs(a_low - b_high), abs(a_high - b_low)
    least = 0.0 if a_low <= b_high and b_low <= a_high else min(gaps)
    small, large = ([max(0.0, rounded(one[1])[end]) for one in (candidate, reference)] for end in (0, 1))
    lowest, _ = welch((least, large[0]), (0.0, large[1]), seeds)
    highest, _ = welch((max(gaps), small[0]), (0.0, small[1]), seeds)
    return lowest or 0.0, math.inf if highest is None else highest


def _overlap(one: Interval, other: Interval) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
