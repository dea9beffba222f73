"""The record of `halfbyte probe`: each probe of a server with its verdict, and which probes ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from halfbyte.endpoint.identity import Identity
from halfbyte.evidence.record import MeasuredRecord

# Prefixes of `measured` of a skipped probe that say nothing about the server.
OVER_BUDGET = "does not fit the budget"
UNREACHABLE = "the server does not answer any more"
ProbeVerdict = Literal["passed", "failed", "broken", "skipped"]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """An offending text."""

    text: str
    problem: str
    start: int = 0
    end: int = 0
    trace: str = ""  # its row in probe.jsonl


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A probe and its verdict."""

    name: str
    group: str
    title: str
    reason: str  # why it is asked
    gate: bool  # whether a failure rejects the server
    verdict: ProbeVerdict
    measured: str  # such as "996 / 1,000 valid", or the reason why it was skipped
    threshold: str
    numbers: Mapping[str, Any]
    excerpts: tuple[Excerpt, ...]
    cause: str | None  # a key of probe/data/causes.yaml
    seconds: float
    traces: tuple[str, ...]  # rows in probe.jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes(MeasuredRecord):
    """All probes of a server."""

    kind = "probe"
    file = "probe/probe.json"
    created_by = "halfbyte probe URL -o {out}/halfbyte/probe"
    measured = "server"

    halfbyte: str  # version
    profile: str
    seed: int
    context: int | None  # tokens
    budget_s: float | None
    endpoint: Identity
    reference: Identity | None
    sandbox: str | None  # how programs written by the model were isolated
    started: str  # ISO 8601, UTC
    seconds: float
    accepted: bool  # at least one probe passed, and no gate failed or broke
    counts: Mapping[str, int]  # by verdict
    probes: tuple[ProbeResult, ...]


@dataclass(frozen=True, slots=True)
class ProbeCoverage:
    """Probes of a run by outcome.

    A probe that the server does not support (no images, no log-probabilities, a short context) says something about
    the server. A probe that did not fit the budget, or was due after the server stopped responding, says nothing: it
    may fail.
    """

    ran: Sequence[ProbeResult]
    over_budget: Sequence[ProbeResult]
    unreachable: Sequence[ProbeResult]
    impossible: Sequence[ProbeResult]  # not supported by this server, or not with these options

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
        ran = Counter(row.group for row in self.ran)
        missing = Counter(row.group for row in (*self.over_budget, *self.unreachable))
        return ", ".join(f"{group} {ran[group]} of {ran[group] + missing[group]}" for group in ran | missing if group)


def coverage(probes: Sequence[ProbeResult]) -> ProbeCoverage:
    """Classify the probes of a run; a skipped probe has its reason in `measured`."""
    ran = [row for row in probes if row.verdict != "skipped"]
    skipped = [row for row in probes if row.verdict == "skipped"]
    over_budget = [row for row in skipped if row.measured.startswith(OVER_BUDGET)]
    unreachable = [row for row in skipped if row.measured.startswith(UNREACHABLE)]
    possible = [*over_budget, *unreachable]
    return ProbeCoverage(ran, over_budget, unreachable, [row for row in skipped if row not in possible])
