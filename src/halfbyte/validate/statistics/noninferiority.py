"""Is the candidate no worse than the reference by more than a margin? And if that is open, how many items would tell?

"No significant difference" proves nothing: ten items never show one. The question is turned round: ACCEPT only when
even the lower one-sided bound of (candidate - reference) lies above minus the margin. REGRESSION when a loss is sure
and not known to lie within the margin. Everything else is INCONCLUSIVE, and says what it would take.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from halfbyte.errors import UsageError
from halfbyte.validate.statistics.distributions import normal_quantile

MARGIN = 0.01
ALPHA = 0.05  # one-sided: of each verdict, how often it may be wrong
POWER = 0.8

Label = Literal["ACCEPT", "REGRESSION", "INCONCLUSIVE"]


@dataclass(frozen=True)
class Verdict:
    """A verdict about candidate - reference, in shares of 1."""

    label: Label
    difference: float
    lower: float
    """One-sided 95 % bound: the difference is hardly less."""
    upper: float
    """One-sided 95 % bound: the difference is hardly more."""
    p_worse: float
    """How likely a loss as large as this, or larger, is when there is none."""
    margin: float
    loss_is_sure: bool
    beyond_margin: bool
    """Whether even the upper bound lies below minus the margin."""
    items: int
    items_if_equal: int | None = None
    """Items for ACCEPT with 80 % power if there is truly no loss; only when inconclusive."""
    items_if_as_seen: int | None = None
    """Items for ACCEPT or REGRESSION with 80 % power if the truth is what was seen; only when inconclusive."""

    @property
    def items_to_decide(self) -> int | None:
        """Items that would decide in either case."""
        if self.items_if_equal is None or self.items_if_as_seen is None:
            return None
        return max(self.items_if_equal, self.items_if_as_seen, self.items + 1)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "alpha": ALPHA, "power": POWER, "items_to_decide": self.items_to_decide}

    def sentence(self) -> str:
        """Say it, and nothing beyond it."""
        margin, lower, seen = _points(self.margin), _signed(self.lower), _signed(self.difference)
        if self.label == "ACCEPT":
            small = " A small loss is sure all the same." if self.loss_is_sure else ""
            return f"ACCEPT: a loss of more than {margin} is ruled out ({seen}, one-sided 95 % bound {lower}).{small}"
        if self.label == "REGRESSION":
            size = f"more than {margin}" if self.beyond_margin else f"and more than {margin} is not ruled out"
            worse = f"worse by {size}" if self.beyond_margin else f"worse, {size}"
            return f"REGRESSION: the candidate is {worse} ({seen}, p = {self.p_worse:.2g} for no loss, bound {lower})."
        return (
            f"INCONCLUSIVE: {self.items:,} items neither show a loss nor rule out one of more than {margin} "
            f"({seen}, one-sided 95 % bound {lower}). About {self.items_to_decide:,} items would decide "
            f"({self.items_if_equal:,} if there is no loss, {self.items_if_as_seen:,} if it is as seen; 80 % power)."
        )


def verdict(
    difference: float, bounds: tuple[float, float], p_worse: float, items: int, spread: float, margin: float = MARGIN
) -> Verdict:
    """Judge a difference (candidate - reference) by its one-sided 95 % bounds and its one-sided p-value of a loss.

    `spread` is the variance of the difference by item; for right and wrong it is the share of items on which the two
    disagree (psi). Clusters make it larger.
    """
    if not 0 < margin < 1:
        raise UsageError(f"a margin of {margin} is no share between 0 and 1", fix="0.01 is one percentage point")
    lower, upper = bounds
    loss_is_sure = difference < 0 and p_worse <= ALPHA
    label: Label = "ACCEPT" if lower > -margin else "REGRESSION" if loss_is_sure else "INCONCLUSIVE"
    found = Verdict(label, difference, lower, upper, p_worse, margin, loss_is_sure, upper < -margin, items)
    if label != "INCONCLUSIVE":
        return found
    gap = max(margin + difference, -difference)  # to ACCEPT, or to REGRESSION: the nearer one needs fewer items
    equal, as_seen = items_needed(spread, margin), items_needed(spread, margin, gap)
    return replace(found, items_if_equal=equal, items_if_as_seen=as_seen)


def items_needed(spread: float, margin: float = MARGIN, gap: float | None = None, power: float = POWER) -> int:
    """Return how many items ACCEPT needs when candidate and reference disagree on a share `spread` of them.

    `gap` is how far the truth lies from minus the margin: the margin itself where there is no loss. Where nothing
    disagreed, Tango's bound still needs z^2 (1 - margin) / margin items.
    """
    z = normal_quantile(1 - ALPHA)
    by_power = spread * ((z + normal_quantile(power)) / (margin if gap is None else gap)) ** 2
    return max(math.ceil(by_power), math.ceil(z * z * (1 - margin) / margin))


def reachable_bound(spread: float, items: int) -> float:
    """Return the lower bound that a study of so many items ends with when both do equally well."""
    return -normal_quantile(1 - ALPHA) * math.sqrt(spread / items)


def _points(share: float) -> str:
    return f"{100 * share:.2g} pp"


def _signed(share: float) -> str:
    return f"{100 * share:+.2f} pp"
