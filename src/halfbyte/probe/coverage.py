"""Coverage: how many of the selected probes ran, and why the others did not. Reads only probe.json.

A probe that the server does not support (no images, no log-probabilities, a short context) says something about the
server. A probe that did not fit the budget, or was due after the server stopped responding, says nothing: it may fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.probe.kinds import OVER_BUDGET, UNREACHABLE

_SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Coverage:
    """Probes of a run by outcome; each is a row of probe.json."""

    ran: Sequence[Mapping[str, Any]]
    over_budget: Sequence[Mapping[str, Any]]
    unreachable: Sequence[Mapping[str, Any]]
    impossible: Sequence[Mapping[str, Any]]  # not supported by this server, or not with these options

    @property
    def asked(self) -> int:
        """Number of selected probes."""
        return len(self.ran) + len(self.over_budget) + len(self.unreachable) + len(self.impossible)

    @property
    def share(self) -> float:
        """Share of the possible probes that ran; 0 if none was possible."""
        possible = self.asked - len(self.impossible)
        return len(self.ran) / possible if possible else 0.0

    def sentence(self) -> str:
        """Return a summary without a full stop."""
        missing = (
            (self.over_budget, "did not fit the budget"),
            (self.unreachable, "not run because the server stopped responding"),
            (self.impossible, "not applicable here"),
        )
        details = ", ".join(f"{len(rows)} {why}" for rows, why in missing if rows)
        return f"{len(self.ran)} of {self.asked} probes ran" + (f"; {details}" if details else "")

    def by_group(self) -> str:
        """Return how many of the possible probes ran, by group; empty if no row names its group."""
        ran = Counter(_group(row) for row in self.ran)
        missing = Counter(_group(row) for row in (*self.over_budget, *self.unreachable))
        return ", ".join(f"{group} {ran[group]} of {ran[group] + missing[group]}" for group in ran | missing if group)


def coverage(probes: Sequence[Mapping[str, Any]]) -> Coverage:
    """Classify the rows of probe.json; a skipped row has its reason in `measured`."""
    ran = [row for row in probes if row.get("verdict") != _SKIPPED]
    skipped = [row for row in probes if row.get("verdict") == _SKIPPED]
    over_budget = [row for row in skipped if _starts(row, OVER_BUDGET)]
    unreachable = [row for row in skipped if _starts(row, UNREACHABLE)]
    possible = [*over_budget, *unreachable]
    return Coverage(ran, over_budget, unreachable, [row for row in skipped if row not in possible])


def _group(row: Mapping[str, Any]) -> str:
    return str(row.get("group") or "")


def _starts(row: Mapping[str, Any], prefix: str) -> bool:
    return str(row.get("measured")).startswith(prefix)
