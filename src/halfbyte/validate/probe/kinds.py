"""What a probe is, what it is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbyte.sandbox.tiers import Tier
    from halfbyte.validate.probe.client import Client
    from halfbyte.validate.probe.context import Lengths
    from halfbyte.validate.probe.profiles import Profile
    from halfbyte.validate.probe.tools.cases import Case

# How the reasons of two kinds of skip begin: they say nothing of the server, and probe.json is judged by that.
OVER_BUDGET = "does not fit the budget"
UNREACHABLE = "the server does not answer any more"


class Verdict(Enum):
    """How a probe ended. Only the first counts as passed."""

    PASSED = "passed"
    FAILED = "failed"  # usable answers, and they are wrong
    BROKEN = "broken"  # no usable answers: the server, the network
    SKIPPED = "skipped"  # could not run here; the reason is said


@dataclass(frozen=True, slots=True)
class Cost:
    """What a probe asks for, at most: for the budget and the time left."""

    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What every probe is given."""

    client: Client
    reference: Client | None
    lengths: Lengths  # prompts of given lengths, and the served limit
    profile: Profile
    seed: int
    sandbox: Tier | None = None  # where code of the model may run
    tool_cases: tuple[Case, ...] | None = None  # of --tool-calls FILE, in place of the profile's

    @property
    def context(self) -> int:
        """The served limit in tokens, or the smaller one that was asked for."""
        return self.lengths.limit


@dataclass(frozen=True, slots=True)
class Shown:
    """An offending text: what is wrong with it, where in it, and the row of the trace it comes from."""

    text: str
    what: str
    start: int = 0
    end: int = 0
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found."""

    verdict: Verdict
    measured: str  # "996 / 1,000 valid"
    threshold: str = ""  # "99.5 %"
    numbers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shown: tuple[Shown, ...] = ()
    cause: str | None = None  # a key of probe_causes.yaml


def costs_nothing(_: Setting) -> Cost:
    """Say that a probe asks for next to nothing."""
    return Cost(1, 0, 0)


def lacks_nothing(_: Setting) -> str | None:
    """Say that a probe can run anywhere."""
    return None


@dataclass(frozen=True, slots=True)
class Probe:
    """One question to an endpoint."""

    name: str  # --only NAME
    group: str  # "card", "long", "prose", "tools", "server", "reference"
    title: str  # the table's first column
    reason: str  # one sentence: what it catches that a benchmark misses
    gate: bool  # FAILED makes exit code 1; else it is only shown
    run: Callable[[Setting], Finding]
    cost: Callable[[Setting], Cost] = costs_nothing
    lacks: Callable[[Setting], str | None] = lacks_nothing  # why it cannot run here, or None


def skipped(reason: str) -> Finding:
    """Return the finding of a probe that did not run."""
    return Finding(Verdict.SKIPPED, reason)


def broken(reason: str) -> Finding:
    """Return the finding of a probe that got no usable answers."""
    return Finding(Verdict.BROKEN, reason)
