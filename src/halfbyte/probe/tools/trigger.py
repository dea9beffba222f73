"""Tool-call decisions: agreement of two servers on the same requests.

The metric is that of the K2 vendor verifier: F1 of "this request ends in tool calls" against the decisions of the
official server. Even that does not agree with itself at temperature 1 (0.76 for K2-Thinking, 0.84 for K2-0905). So the
threshold is the self-agreement of the reference minus a margin, or a fixed number without a live reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.probe.judging import share_of


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts of true and false positives and negatives, with the reference as ground truth."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int

    @property
    def precision(self) -> float:
        """Return the share of our calls that the reference also makes."""
        return _share(self.both, self.both + self.only_ours)

    @property
    def recall(self) -> float:
        """Return the share of the reference's calls that we also make."""
        return _share(self.both, self.both + self.only_theirs)

    @property
    def f1(self) -> float:
        """Return the harmonic mean of both; 1 if neither side ever calls."""
        return _share(2 * self.both, 2 * self.both + self.only_ours + self.only_theirs)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        count = self.both + self.only_ours + self.only_theirs + self.neither
        return {
            "true_positives": self.both, "false_positives": self.only_ours, "false_negatives": self.only_theirs,
            "true_negatives": self.neither, "precision": self.precision, "recall": self.recall, "f1": self.f1,
            "agree": share_of(self.both + self.neither, count),
        }  # fmt: skip


def agreement(ours: Sequence[bool], theirs: Sequence[bool]) -> Agreement:
    """Count the decisions."""
    pairs = list(zip(ours, theirs, strict=True))
    return Agreement(
        pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True)), pairs.count((False, False))
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
