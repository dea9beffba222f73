"""Decide whether a series is flat: one rule for counts that must not grow, and one for memory, which always varies.

A count may go up and come down again, and other programs have files in shared memory too. The lowest counts of the
first third and of the last third after the warm-up are compared: a leak raises the minimum for good.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

MEGABYTE = 1e6
MEMORY = "rss"
MEMORY_BOUND_MB = 3.0  # per 100 rounds; an hour of 531 rounds gave 0.03, some minutes give up to 0.5
FLAT = (
    "descriptors",
    "threads",
    "children",
    "zombies",
    "orphans",
    "temp_files",
    "work_files",
    "cache_files",
    "shared_files",
)
WARM_UP = 0.2  # of the rounds: imports, compiled kernels, pools of threads, the allocator's first arenas
FEWEST_FOR_MEMORY = 40  # rounds after the warm-up; fewer say nothing about a slope
FEWEST_FOR_COUNTS = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one series."""

    name: str
    level: str  # good, bad, or open where there were too few rounds
    sentence: str
    growth: float | None


def judge(series: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Judge every series, memory first."""
    rounds = len(series[MEMORY])
    skipped = math.ceil(rounds * WARM_UP)
    memory = judge_memory(series[MEMORY][skipped:])
    return [memory, *(judge_count(name, series[name][skipped:]) for name in FLAT if name in series)]


def judge_memory(nbytes: Sequence[int]) -> Finding:
    """Judge memory by the median of all slopes between two rounds, which single steps do not move."""
    if len(nbytes) < FEWEST_FOR_MEMORY:
        few = f"memory: {len(nbytes)} rounds after the warm-up, and it takes {FEWEST_FOR_MEMORY} to tell a slope"
        return Finding(MEMORY, "open", few, None)
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(nbytes), 2)]
    growth = 100 * statistics.median(slopes) / MEGABYTE
    sentence = (
        f"memory: {growth:+.2f} MB per 100 rounds (bound {MEMORY_BOUND_MB:g}), now {nbytes[-1] / MEGABYTE:,.0f} MB"
    )
    return Finding(MEMORY, "bad" if growth > MEMORY_BOUND_MB else "good", sentence, growth)


def judge_count(name: str, counts: Sequence[int]) -> Finding:
    """Judge a count by whether its floor has risen."""
    title = name.replace("_", " ")
    if len(counts) < FEWEST_FOR_COUNTS:
        return Finding(name, "open", f"{title}: {len(counts)} rounds after the warm-up are too few", None)
    third = len(counts) // 3
    before, after = min(counts[:third]), min(counts[-third:])
    if after > before:
        return Finding(
            name, "bad", f"{title}: never below {before} at first, never below {after} at last", after - before
        )
    return Finding(name, "good", f"{title}: flat at {after}", after - before)


def as_json(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Return the findings for a file."""
    return [asdict(finding) for finding in findings]
