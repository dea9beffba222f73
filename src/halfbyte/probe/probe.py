"""Probes, their settings and their findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from halfbyte.evidence.probes import Excerpt

if TYPE_CHECKING:
    from halfbyte.probe.client import Client
    from halfbyte.probe.context import Lengths
    from halfbyte.probe.profiles import Profile
    from halfbyte.probe.tool_cases import Case
    from halfbyte.sandbox.tiers import Tier


class Verdict(Enum):
    """Outcome of a probe. Only PASSED counts as passed."""

    PASSED = "passed"
    FAILED = "failed"  # usable answers that are wrong
    BROKEN = "broken"  # no usable answers: a fault of the server or the network
    SKIPPED = "skipped"  # could not run here, with the reason


@dataclass(frozen=True, slots=True)
class Cost:
    """Maximum number of requests and tokens of a probe, to estimate its time."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    at_once: int = 1  # concurrent requests


@dataclass(frozen=True, slots=True)
class Setting:
    """Arguments of every probe."""

    client: Client
    reference: Client | None
    lengths: Lengths  # prompts of given lengths, and the served limit
    profile: Profile
    seed: int
    sandbox: Tier | None = None  # for model-written code
    tool_cases: tuple[Case, ...] | None = None  # from --tool-calls FILE, instead of the profile's

    @property
    def context(self) -> int:
        """The context length in tokens: the served one, or the smaller one requested."""
        return self.lengths.limit


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a probe."""

    verdict: Verdict
    measured: str  # "996 / 1,000 valid"
    threshold: str = ""  # "99.5 %"
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    excerpts: tuple[Excerpt, ...] = ()
    cause: str | None = None  # a key of causes.yaml


def costs_nothing(_: Setting) -> Cost:
    """Return the cost of a probe with one short request."""
    return Cost(1, 0, 0)


def lacks_nothing(_: Setting) -> str | None:
    """Return None: the probe can run anywhere."""
    return None


@dataclass(frozen=True, slots=True)
class Probe:
    """One test of an endpoint."""

    name: str  # --only NAME
    group: str  # "card", "long", "prose", "tools", "server", "reference"
    title: str  # the table's first column
    reason: str  # one sentence: the fault that it finds and benchmarks miss
    gate: bool  # whether FAILED gives exit code 1 or is only shown
    run: Callable[[Setting], Finding]
    cost: Callable[[Setting], Cost] = costs_nothing
    lacks: Callable[[Setting], str | None] = lacks_nothing  # why it cannot run here, or None
    repeats: bool = False  # a rung of the context ladder, or repetitions of one request: last within a budget


def skipped(reason: str) -> Finding:
    """Return the finding of a skipped probe."""
    return Finding(Verdict.SKIPPED, reason)


def broken(reason: str) -> Finding:
    """Return the finding of a probe without usable answers."""
    return Finding(Verdict.BROKEN, reason)
