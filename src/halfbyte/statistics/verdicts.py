"""Verdicts: non-inferiority with a margin for one task, and several tasks together with Holm's correction.

"No significant difference" is not evidence of no loss: a small sample never shows one. ACCEPT requires that the lower
one-sided bound of (candidate - reference) is above minus the margin. REGRESSION means that a loss is significant and
not known to be within the margin. Everything else is INCONCLUSIVE, with the number of items needed.

A suite is a REGRESSION if the loss in at least one task is significant after Holm's correction. It is ACCEPT only if
every task is. That needs no correction, because all of them must hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from halfbyte.errors import UsageError
from halfbyte.statistics.distributions import normal_quantile
from halfbyte.statistics.results import Label, NonInferiority

MARGIN = 0.01
ALPHA = 0.05  # one-sided error rate of each verdict
POWER = 0.8


def verdict(
    difference: float, bounds: tuple[float, float], p_worse: float, items: int, spread: float, margin: float = MARGIN
) -> NonInferiority:
    """Judge a difference (candidate - reference) by its one-sided 95 % bounds and the one-sided p-value of a loss.

    `spread` is the variance of the difference per item. For binary scores it is the share of items on which the two
    disagree (psi). Clusters increase it.
    """
    if not 0 < margin < 1:
        raise UsageError(f"the margin {margin} is not between 0 and 1", fix="0.01 is one percentage point")
    lower, upper = bounds
    significant_loss = difference < 0 and p_worse <= ALPHA
    label: Label = "ACCEPT" if lower > -margin else "REGRESSION" if significant_loss else "INCONCLUSIVE"
    result = NonInferiority(
        label=label,
        difference=difference,
        lower=lower,
        upper=upper,
        p_worse=p_worse,
        margin=margin,
        significant_loss=significant_loss,
        beyond_margin=upper < -margin,
        items=items,
        alpha=ALPHA,
        power=POWER,
    )
    if label != "INCONCLUSIVE":
        return result
    gap = max(margin + difference, -difference)  # distance to ACCEPT or REGRESSION, whichever needs fewer items
    equal, as_seen = items_needed(spread, margin), items_needed(spread, margin, gap)
    decide = max(equal, as_seen, items + 1)
    return replace(result, items_if_no_loss=equal, items_if_as_observed=as_seen, items_to_decide=decide)


def items_needed(spread: float, margin: float = MARGIN, gap: float | None = None, power: float = POWER) -> int:
    """Return the number of items for ACCEPT if candidate and reference disagree on a share `spread` of them.

    `gap` is the distance of the true difference from minus the margin: the margin itself if there is no loss. Without
    any disagreement, Tango's bound still needs z^2 (1 - margin) / margin items.
    """
    z = normal_quantile(1 - ALPHA)
    by_power = spread * ((z + normal_quantile(power)) / (margin if gap is None else gap)) ** 2
    return max(math.ceil(by_power), math.ceil(z * z * (1 - margin) / margin))


@dataclass(frozen=True)
class SuiteVerdict:
    """The tasks of a suite, judged together."""

    label: Label
    adjusted_p: dict[str, float]
    """One-sided p-value of a loss by task, after Holm's correction."""
    verdicts: dict[str, Label]
    """Verdict by task. A REGRESSION that is not significant after the correction is INCONCLUSIVE."""

    def sentence(self) -> str:
        """Return the verdict as a sentence, including the correction."""
        count = len(self.verdicts)
        of = f"{count} task{'s' * (count > 1)}"
        named = {
            label: [task for task, own in self.verdicts.items() if own == label]
            for label in set(self.verdicts.values())
        }
        if self.label == "REGRESSION":
            worse = ", ".join(f"{task} (p = {self.adjusted_p[task]:.2g})" for task in named["REGRESSION"])
            return f"REGRESSION in {worse}; p-values after Holm's correction for {of}."
        if self.label == "ACCEPT":
            return f"ACCEPT: each of {of} rules out a loss beyond its margin; no correction needed, as all must hold."
        undecided = ", ".join(named["INCONCLUSIVE"])
        return f"INCONCLUSIVE: {undecided} undecided; no significant loss after Holm's correction for {of}."


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values in the same order: the smallest times n, the next times n - 1, ..."""
    if not all(0 <= p <= 1 for p in p_values):
        raise UsageError("a p-value must be between 0 and 1", fix="check the task with the invalid value")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def judge_suite(verdicts: Mapping[str, NonInferiority]) -> SuiteVerdict:
    """Judge the verdicts of several tasks together."""
    if not verdicts:
        raise UsageError("a suite without tasks has no verdict", fix="run at least one task")
    adjusted = dict(zip(verdicts, holm([verdict.p_worse for verdict in verdicts.values()]), strict=True))
    labels: dict[str, Label] = {
        task: "INCONCLUSIVE" if verdict.label == "REGRESSION" and adjusted[task] > ALPHA else verdict.label
        for task, verdict in verdicts.items()
    }
    kinds = set(labels.values())
    label: Label = "REGRESSION" if "REGRESSION" in kinds else "ACCEPT" if kinds == {"ACCEPT"} else "INCONCLUSIVE"
    return SuiteVerdict(label, adjusted, labels)
