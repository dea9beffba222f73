"""Several tasks at once: who looks often enough finds a loss somewhere, and Holm's rule allows for that.

A REGRESSION of the suite needs one task whose loss is sure after Holm. "No loss" is claimed only when every task says
so by itself; that needs no correction, because all of them must hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.validate.statistics.noninferiority import ALPHA, Label, Verdict


@dataclass(frozen=True)
class Suite:
    """The tasks of a suite, judged together."""

    label: Label
    adjusted_p: dict[str, float]
    """By task, of a loss, one-sided, after Holm."""
    verdicts: dict[str, Label]
    """By task: its own verdict, but a REGRESSION that Holm does not bear out is INCONCLUSIVE."""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "correction": "Holm, one-sided", "alpha": ALPHA}

    def sentence(self) -> str:
        """Say it, with what was done about looking several times."""
        count = len(self.verdicts)
        of = f"{count} task{'s' * (count > 1)}"
        named = {
            label: [task for task, own in self.verdicts.items() if own == label]
            for label in set(self.verdicts.values())
        }
        if self.label == "REGRESSION":
            worse = ", ".join(f"{task} (p = {self.adjusted_p[task]:.2g})" for task in named["REGRESSION"])
            return f"REGRESSION in {worse}; p-values after Holm over {of}."
        if self.label == "ACCEPT":
            return f"ACCEPT: each of {of} rules out a loss beyond its margin; all must hold, so none is corrected."
        open_ones = ", ".join(named["INCONCLUSIVE"])
        return f"INCONCLUSIVE: {open_ones} of {of} left open; no loss is sure after Holm over {of}."


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values after Holm, in the same order: the smallest times their number, the next times one less, ..."""
    if not all(0 <= p <= 1 for p in p_values):
        raise UsageError("a p-value lies between 0 and 1", fix="look at the task that gave another number")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def judge_suite(verdicts: Mapping[str, Verdict]) -> Suite:
    """Judge the verdicts of several tasks together."""
    if not verdicts:
        raise UsageError("a suite without a task has no verdict", fix="run at least one task")
    adjusted = dict(zip(verdicts, holm([one.p_worse for one in verdicts.values()]), strict=True))
    labels: dict[str, Label] = {
        task: "INCONCLUSIVE" if one.label == "REGRESSION" and adjusted[task] > ALPHA else one.label
        for task, one in verdicts.items()
    }
    found = set(labels.values())
    whole: Label = "REGRESSION" if "REGRESSION" in found else "ACCEPT" if found == {"ACCEPT"} else "INCONCLUSIVE"
    return Suite(whole, adjusted, labels)
