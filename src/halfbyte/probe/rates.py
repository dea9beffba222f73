"""Gates on the share of bad answers: against a share that no healthy model reaches, or against a reference.

Good models also loop or get cut off occasionally, so one bad answer proves nothing. Without a reference, the whole
interval must be above the tolerated share. With one, a sign test must show that more prompts are worse than better.
Answers to one prompt at several temperatures are not independent, so prompts are compared, not answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.probe.judging import share_of
from halfbyte.statistics.proportions import sign_test, wilson

SIGNIFICANT = 0.01  # several gates use it in one run, so 0.05 would give too many false alarms


@dataclass(frozen=True, slots=True)
class Rate:
    """Bad answers by prompt: how many of how many."""

    bad: tuple[int, ...]
    asked: tuple[int, ...]

    @property
    def found(self) -> int:
        """Number of bad answers."""
        return sum(self.bad)

    @property
    def count(self) -> int:
        """Number of answers."""
        return sum(self.asked)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the Wilson interval over prompts, each with its share of bad answers."""
        shares = [bad / asked for bad, asked in zip(self.bad, self.asked, strict=True) if asked]
        return wilson(sum(shares), len(shares))

    @property
    def sentence(self) -> str:
        """Return the rate with its interval: 0 of 40 prompts only means less than 9 %."""
        low, high = self.interval
        between = f"< {high:.0%}" if not self.found else f"{low:.0%} to {high:.0%}"
        return f"{self.found} / {self.count} ({between})"


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a rate is too high, and its description."""

    too_high: bool
    measured: str
    threshold: str
    numbers: dict[str, Any]


def rate_of(flags: Sequence[Sequence[bool]]) -> Rate:
    """Count the bad answers of each prompt."""
    return Rate(tuple(sum(answers) for answers in flags), tuple(len(answers) for answers in flags))


def judge_rate(ours: Rate, theirs: Rate | None, tolerated: float, what: str) -> Judged:
    """Judge a rate; both sides answered the same prompts."""
    low, high = ours.interval
    interval = [round(low, 4), round(high, 4)]
    numbers: dict[str, Any] = {
        "ours": share_of(ours.found, ours.count),
        "tolerated": tolerated,
        "over_prompts": interval,
    }
    if theirs is None:
        return Judged(low > tolerated, f"{ours.sentence} {what}", f"not significantly above {tolerated:.0%}", numbers)
    sides = zip(ours.bad, ours.asked, theirs.bad, theirs.asked, strict=True)
    pairs = [(a / asked, b / others) for a, asked, b, others in sides if asked and others]
    worse, better = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    p = sign_test(worse, better)
    numbers |= {
        "reference": share_of(theirs.found, theirs.count), "prompts_worse": worse, "prompts_better": better, "p": p
    }  # fmt: skip
    return Judged(
        p < SIGNIFICANT,
        f"{ours.sentence} {what}, the reference {theirs.found} / {theirs.count} (p {p:.2g})",
        f"not significantly above the reference (p {SIGNIFICANT})",
        numbers,
    )
