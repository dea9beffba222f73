"""A against B: the ratio at each point, and the sentences that the data carries.

Two things are compared: output tokens a second of the node, and tokens a second that a user sees. Whoever says "up to"
has looked at several ratios and picked the best, so those intervals are wider: 95 % for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from halfbyte.validate.bench.blocks import WARM_UP
from halfbyte.validate.bench.records import Block, whole_pairs
from halfbyte.validate.bench.shapes import Point
from halfbyte.validate.bench.summary import Summary
from halfbyte.validate.statistics.proportions import CONFIDENCE
from halfbyte.validate.statistics.throughput import Design, Speedup, throughput_ratio

MEASURES: Mapping[str, tuple[str, Callable[[Block], float]]] = {
    "node": ("output tokens a second of the node", lambda block: block.throughput),
    "user": ("tokens a second that a user sees", lambda block: block.per_user),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio at one point: by itself, and as one of several."""

    point: Point
    measure: str
    alone: Speedup
    together: Speedup
    looked_at: int  # how many ratios there are

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "point": str(self.point),
            "measure": MEASURES[self.measure][0],
            "alone": self.alone.as_dict(),
            "together": self.together.as_dict(),
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """Say what was found here."""
        return f"{self.point}, {MEASURES[self.measure][0]}: {self.alone.sentence()}"


def compare(blocks: Sequence[Block], summaries: Sequence[Summary], no_claim: str, design: Design) -> list[Comparison]:
    """Compare A with B at each point where both have blocks; `no_claim` forbids every headline."""
    by_point = {(one.arm, one.point): one for one in summaries}
    points = [point for arm, point in by_point if arm == "A" and ("B", point) in by_point]
    found: list[Comparison] = []
    for point in points:
        why = no_claim or by_point["A", point].no_claim_because or by_point["B", point].no_claim_because
        here = [block for block in blocks if block.point == point and block.turn != WARM_UP]
        for measure, (_, value) in MEASURES.items():
            speeds = _speeds(here, value, design)
            if not all(speeds):
                continue  # the errors say why; no ratio is made of nothing
            ratios = len(points) * len(MEASURES)
            wider = 1 - (1 - CONFIDENCE) / ratios
            alone, together = (
                throughput_ratio(*speeds, design, no_claim_because=why, confidence=level)
                for level in (CONFIDENCE, wider)
            )
            found.append(Comparison(point, measure, alone, together, ratios))
    return found


def not_compared(summaries: Sequence[Summary]) -> list[str]:
    """Say where only one of two servers has a speed: nothing is compared there, however near the other's points are."""
    measured = {arm: [one.point for one in summaries if one.arm == arm and one.tokens_per_second] for arm in "AB"}
    if not all(measured.values()):
        return []  # one server only, or one whose errors are said
    return [
        f"{point}: only {arm} has a speed here, so nothing is compared"
        for arm, other in ("AB", "BA")
        for point in measured[arm]
        if point not in measured[other]
    ]


def _speeds(blocks: Sequence[Block], value: Callable[[Block], float], design: Design) -> tuple[list[Any], list[Any]]:
    """Return the speeds of both arms: of pairs in the order of time, or of each server start."""
    if design == "abba":
        pairs = whole_pairs([block for block in blocks if value(block) > 0], "AB")
        pairs.sort(key=lambda block: block.turn)
        a, b = ([value(one) for one in pairs if one.arm == arm] for arm in "AB")
        return a, b
    starts: dict[str, dict[Any, list[float]]] = {"A": {}, "B": {}}
    for block in blocks:
        if not block.problem and value(block) > 0:
            starts[block.arm].setdefault(_start_of(block), []).append(value(block))
    return list(starts["A"].values()), list(starts["B"].values())


def _start_of(block: Block) -> Any:
    """Return what tells one server start from another: when it began, else the file that it is in."""
    return block.server.get("server_started") or block.source


def headlines(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the claims that hold, the best of each measure, with the point where it holds."""
    said: list[str] = []
    for measure, (words, _) in MEASURES.items():
        holds = [one for one in comparisons if one.measure == measure and one.together.headline]
        up = [one for one in holds if one.together.ratio > 1]
        down = [one for one in holds if one.together.ratio < 1]
        if up:
            best = max(up, key=lambda one: one.together.interval or (0.0, 0.0))
            said.append(f"A gives {best.together.headline} {words} at {best.point}{_interval(best)}")
        if down:
            worst = min(down, key=lambda one: one.together.ratio)
            said.append(f"A gives {worst.together.headline} {words} at {worst.point}{_interval(worst)}")
    return said


def _interval(one: Comparison) -> str:
    low, high = one.together.interval or (0.0, 0.0)
    of = f" for all {one.looked_at} ratios together"
    return f" ({one.together.ratio:.2f}x, {100 * CONFIDENCE:.0f} % interval{of} {low:.2f} to {high:.2f})"
