"""How many of the probes that were asked for ran, and why the others did not; from probe.json alone.

A probe that a server cannot be asked (no pictures, no log-probabilities, a short context) says something of the server.
One that did not fit the time, or came after the server went silent, says nothing at all: it may fail tomorrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.validate.probe.kinds import OVER_BUDGET, UNREACHABLE

_SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The probes of a run by whether they ran; each is the row of probe.json."""

    ran: Sequence[Mapping[str, Any]]
    over_budget: Sequence[Mapping[str, Any]]
    unreachable: Sequence[Mapping[str, Any]]
    impossible: Sequence[Mapping[str, Any]]  # not to be asked of this server, or with these options

    @property
    def asked(self) -> int:
        """How many probes were asked for."""
        return len(self.ran) + len(self.over_budget) + len(self.unreachable) + len(self.impossible)

    @property
    def share(self) -> float:
        """The share that ran, of those that could have; 0 where there were none."""
        possible = self.asked - len(self.impossible)
        return len(self.ran) / possible if possible else 0.0

    def sentence(self) -> str:
        """Return it in words, without a full stop."""
        left = (
            (self.over_budget, "did not fit the budget"),
            (self.unreachable, "came after the server went silent"),
            (self.impossible, "cannot be asked of this server"),
        )
        more = ", ".join(f"{len(rows)} {why}" for rows, why in left if rows)
        return f"{len(self.ran)} of {self.asked} probes ran" + (f"; {more}" if more else "")


def coverage(probes: Sequence[Mapping[str, Any]]) -> Coverage:
    """Sort the rows of probe.json; the reason of a skip is what it has for a measurement."""
    ran = [row for row in probes if row.get("verdict") != _SKIPPED]
    skipped = [row for row in probes if row.get("verdict") == _SKIPPED]
    over_budget = [row for row in skipped if _begins(row, OVER_BUDGET)]
    unreachable = [row for row in skipped if _begins(row, UNREACHABLE)]
    known = [*over_budget, *unreachable]
    return Coverage(ran, over_budget, unreachable, [row for row in skipped if row not in known])


def _begins(row: Mapping[str, Any], words: str) -> bool:
    return str(row.get("measured")).startswith(words)
