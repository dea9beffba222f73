"""When tools are called: the decisions of two sides on the same requests.

The K2 vendor verifier's measure: F1 of "this request ends in tool calls" against the official server's decisions. Even
the official server does not agree with itself at temperature 1 (0.76 for K2-Thinking, 0.84 for K2-0905). So the bar is
the reference's agreement with itself, less a margin; a number that somebody wrote down only where there is no reference
to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.validate.probe.judging import share_of


@dataclass(frozen=True, slots=True)
class Agreement:
    """Decisions counted: true and false positives and negatives; the reference is what is true."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int

    @property
    def precision(self) -> float:
        """Return the share of our calls that the reference makes too."""
        return _share(self.both, self.both + self.only_ours)

    @property
    def recall(self) -> float:
        """Return the share of the reference's calls that we make too."""
        return _share(self.both, self.both + self.only_theirs)

    @property
    def f1(self) -> float:
        """Return the harmonic mean; 1 where neither side ever calls."""
        return _share(2 * self.both, 2 * self.both + self.only_ours + self.only_theirs)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
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
