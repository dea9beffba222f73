"""Judge several tasks together, with Holm's correction for multiple testing.

The suite is a REGRESSION if the loss in at least one task is significant after Holm's correction. It is ACCEPT only if
every task is. That needs no correction, because all of them must hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.statistics.noninferiority import ALPHA, Label, Verdict


@dataclass(frozen=True)
class Suite:
    """The tasks of a suite, judged together."""

    label: Label
    adjusted_p: dict[str, float]
    """One-sided p-value of a loss by task, after Holm's correction."""
    verdicts: dict[str, Label]
    """Verdict by task. A REGRESSION that is not significant after the correction is INCONCLUSIVE."""

    def as_dict(self) -> dict[str, Any]:
        """Return the suite's verdict for JSON."""
        return {**asdict(self), "correction": "Holm, one-sided", "alpha": ALPHA}

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


def judge_suite(verdicts: Mapping[str, Verdict]) -> Suite:
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
    return Suite(label, adjusted, labels)
