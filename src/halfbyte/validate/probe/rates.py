"""A share of bad answers as a gate: against a share that no sound model reaches, or against a reference.

Good models loop now and then, and are cut off now and then. So one bad answer proves nothing: without a reference the
whole interval must lie above what is tolerated; with one, more prompts must be worse than better than chance explains.
The answers of one prompt at several temperatures are not independent: prompts are counted and compared, not answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.validate.probe.judging import share_of
from halfbyte.validate.statistics.proportions import sign_test, wilson

SIGNIFICANT = 0.01  # several gates use it in one run: one in twenty would be an alarm too often


@dataclass(frozen=True, slots=True)
class Rate:
    """Bad answers by prompt: how many of how many."""

    bad: tuple[int, ...]
    asked: tuple[int, ...]

    @property
    def found(self) -> int:
        """How many answers are bad."""
        return sum(self.bad)

    @property
    def count(self) -> int:
        """How many answers there are."""
        return sum(self.asked)

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's interval over prompts, each with the share of its answers that are bad."""
        shares = [bad / asked for bad, asked in zip(self.bad, self.asked, strict=True) if asked]
        return wilson(sum(shares), len(shares))

    @property
    def sentence(self) -> str:
        """Say it with the interval: nothing in 40 prompts only says less than 9 %."""
        low, high = self.interval
        between = f"< {high:.0%}" if not self.found else f"{low:.0%} to {high:.0%}"
        return f"{self.found} / {self.count} ({between})"


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether a rate is too high, and what to say."""

    too_high: bool
    measured: str
    threshold: str
    numbers: dict[str, Any]


def rate_of(flags: Sequence[Sequence[bool]]) -> Rate:
    """Count the flags of each prompt's answers."""
    return Rate(tuple(sum(one) for one in flags), tuple(len(one) for one in flags))


def judge_rate(ours: Rate, theirs: Rate | None, tolerated: float, what: str) -> Judged:
    """Return the verdict over a rate; both sides were asked the same prompts."""
    low, high = ours.interval
    interval = [round(low, 4), round(high, 4)]
    numbers: dict[str, Any] = {
        "ours": share_of(ours.found, ours.count),
        "tolerated": tolerated,
        "over_prompts": interval,
    }
    if theirs is None:
        return Judged(low > tolerated, f"{ours.sentence} {what}", f"not surely above {tolerated:.0%}", numbers)
    sides = zip(ours.bad, ours.asked, theirs.bad, theirs.asked, strict=True)
    pairs = [(a / asked, b / others) for a, asked, b, others in sides if asked and others]  # lost answers are not sound
    worse, better = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    p = sign_test(worse, better)
    numbers |= {
        "reference": share_of(theirs.found, theirs.count), "prompts_worse": worse, "prompts_better": better, "p": p
    }  # fmt: skip
    return Judged(
        p < SIGNIFICANT,
        f"{ours.sentence} {what}, the reference {theirs.found} / {theirs.count} (p {p:.2g})",
        f"no more than the reference (p {SIGNIFICANT})",
        numbers,
    )
