"""Compare server A with server B: the ratio at each point, and the claims that the data supports.

Two rates are compared: output tokens per second of the whole server, and tokens per second per user. An "up to" claim
picks the best of several ratios, so its intervals are wider: 95 % for all ratios together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.bench.blocks import WARM_UP
from halfbyte.bench.records import Block, whole_pairs
from halfbyte.bench.shapes import Point
from halfbyte.bench.summary import Summary
from halfbyte.statistics.proportions import CONFIDENCE
from halfbyte.statistics.throughput import Design, Speedup, throughput_ratio

MEASURES: Mapping[str, tuple[str, Callable[[Block], float]]] = {
    "node": ("output tokens per second", lambda block: block.throughput),
    "user": ("tokens per second per user", lambda block: block.per_user),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio at one point, with its own interval and with the simultaneous interval of all ratios."""

    point: Point
    measure: str
    alone: Speedup
    together: Speedup
    looked_at: int  # number of ratios

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        return {
            "point": str(self.point),
            "measure": MEASURES[self.measure][0],
            "alone": self.alone.as_dict(),
            "together": self.together.as_dict(),
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Return the result as a sentence."""
        return f"{self.point}, {MEASURES[self.measure][0]}: {self.alone.sentence()}"


def compare(blocks: Sequence[Block], summaries: Sequence[Summary], no_claim: str, design: Design) -> list[Comparison]:
    """Compare A with B at each point where both have blocks. `no_claim` is a reason that forbids every headline."""
    by_point = {(summary.arm, summary.point): summary for summary in summaries}
    points = [point for arm, point in by_point if arm == "A" and ("B", point) in by_point]
    comparisons: list[Comparison] = []
    for point in points:
        why = no_claim or by_point["A", point].no_claim_because or by_point["B", point].no_claim_because
        here = [block for block in blocks if block.point == point and block.turn != WARM_UP]
        for measure, (_, value) in MEASURES.items():
            speeds = _speeds(here, value, design)
            if not all(speeds):
                continue  # the errors are reported
            ratios = len(points) * len(MEASURES)
            wider = 1 - (1 - CONFIDENCE) / ratios
            alone, together = (
                throughput_ratio(*speeds, design, no_claim_because=why, confidence=level)
                for level in (CONFIDENCE, wider)
            )
            comparisons.append(Comparison(point, measure, alone, together, ratios))
    return comparisons


def not_compared(summaries: Sequence[Summary]) -> list[str]:
    """Return a sentence for each point that only one of the two servers was measured at."""
    measured = {arm: [row.point for row in summaries if row.arm == arm and row.tokens_per_second] for arm in "AB"}
    if not all(measured.values()):
        return []  # one server only, or one whose errors are reported
    return [
        f"{point}: not compared, because only {arm} was measured here"
        for arm, other in ("AB", "BA")
        for point in measured[arm]
        if point not in measured[other]
    ]


def _speeds(blocks: Sequence[Block], value: Callable[[Block], float], design: Design) -> tuple[list[Any], list[Any]]:
    """Return the speeds of both arms: of pairs in time order, or grouped by server start."""
    if design == "abba":
        pairs = whole_pairs([block for block in blocks if value(block) > 0], "AB")
        pairs.sort(key=lambda block: block.turn)
        a, b = ([value(block) for block in pairs if block.arm == arm] for arm in "AB")
        return a, b
    starts: dict[str, dict[Any, list[float]]] = {"A": {}, "B": {}}
    for block in blocks:
        if not block.problem and value(block) > 0:
            starts[block.arm].setdefault(_start_of(block), []).append(value(block))
    return list(starts["A"].values()), list(starts["B"].values())


def _start_of(block: Block) -> Any:
    """Return the key of a server start: its start time, or else the source file."""
    return block.server.get("server_started") or block.source


def headlines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the claims that hold: the best of each measure, with its point."""
    claims: list[str] = []
    for measure, (words, _) in MEASURES.items():
        holds = [row for row in comparisons if row.measure == measure and row.together.headline]
        up = [row for row in holds if row.together.ratio > 1]
        down = [row for row in holds if row.together.ratio < 1]
        if up:
            best = max(up, key=lambda row: row.together.interval or (0.0, 0.0))
            claims.append(f"A gives {best.together.headline} {words} at {best.point}{_interval(best)}")
        if down:
            worst = min(down, key=lambda row: row.together.ratio)
            claims.append(f"A gives {worst.together.headline} {words} at {worst.point}{_interval(worst)}")
    return claims


def _interval(comparison: Comparison) -> str:
    low, high = comparison.together.interval or (0.0, 0.0)
    of = f" for all {comparison.looked_at} ratios together"
    return f" ({comparison.together.ratio:.2f}x, {100 * CONFIDENCE:.0f} % interval{of} {low:.2f} to {high:.2f})"
