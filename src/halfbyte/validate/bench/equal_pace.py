"""A against B where both give a user the same pace: how readers of throughput-interactivity curves compare.

At the same concurrency the faster server also answers each user faster, so a ratio there mixes two gains. Here a pace
(seconds for a token, TPOT) is chosen, and each server's throughput at that pace is read off its measured curve, between
two measured concurrencies. Beyond the measured points nothing is said: no curve is continued.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from halfbyte.validate.bench.blocks import WARM_UP
from halfbyte.validate.bench.records import Block, whole_pairs
from halfbyte.validate.bench.shapes import Point
from halfbyte.validate.statistics.throughput import Speedup, throughput_ratio

_FEWEST = 2  # concurrencies for a curve, and turns for an interval

Curve = Sequence[tuple[float, float]]  # seconds for a token, tokens a second of the node


@dataclass(frozen=True, slots=True)
class EqualPace:
    """One shape: the ratio of the node's throughputs at one pace, or why there is none."""

    shape: str
    tpot: float | None = None
    speedup: Speedup | None = None
    why_not: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = self.speedup.as_dict() if self.speedup else None
        return {"shape": self.shape, "tpot": self.tpot, "found": found, "sentence": self.sentence()}

    def sentence(self) -> str:
        """Say it."""
        if self.tpot is None or self.speedup is None:
            return f"{self.shape}: no ratio at the same pace: {self.why_not}"
        return f"{self.shape}, both at {self.tpot * 1e3:.3g} ms a token: {self.speedup.sentence()}"


def equal_pace(blocks: Sequence[Block], no_claim: str) -> list[EqualPace]:
    """Compare each shape that both servers were measured with in turns; `no_claim` forbids every headline."""
    shapes: dict[tuple[int, int, str], list[Block]] = {}
    for block in whole_pairs([block for block in blocks if block.turn != WARM_UP], "AB"):
        if block.per_user > 0:
            shapes.setdefault((block.point.prompt, block.point.output, block.point.content), []).append(block)
    return [_compare(found, no_claim) for found in shapes.values()]


def _compare(blocks: Sequence[Block], no_claim: str) -> EqualPace:
    shape = _name(blocks[0].point)
    arms = [[block for block in blocks if block.arm == arm] for arm in "AB"]
    whole = [_of_all_turns(found) for found in arms]
    if any(len(curve) < _FEWEST for curve in whole):
        return EqualPace(shape, why_not="a curve needs at least two concurrencies")
    low, high = max(min(curve)[0] for curve in whole), min(max(curve)[0] for curve in whole)
    if low > high:
        paces = " and ".join(f"{min(curve)[0] * 1e3:.3g} to {max(curve)[0] * 1e3:.3g}" for curve in whole)
        return EqualPace(shape, why_not=f"the paces do not meet ({paces} ms a token); measure more concurrencies")
    tpot = math.sqrt(low * high)  # the middle of what both reach
    ours, theirs = (_by_turn(found, tpot) for found in arms)
    turns = sorted(ours.keys() & theirs.keys())
    if len(turns) < _FEWEST:
        return EqualPace(shape, why_not=f"only {len(turns)} turns of both reach {tpot * 1e3:.3g} ms a token")
    a, b = ([side[turn] for turn in turns] for side in (ours, theirs))
    return EqualPace(shape, tpot, throughput_ratio(a, b, "abba", no_claim_because=no_claim))


def _of_all_turns(blocks: Sequence[Block]) -> Curve:
    """Return one point for each concurrency, the mean over its blocks."""
    by_users: dict[int, list[Block]] = {}
    for block in blocks:
        by_users.setdefault(block.point.concurrency, []).append(block)
    return [
        (sum(1 / one.per_user for one in found) / len(found), sum(one.throughput for one in found) / len(found))
        for found in by_users.values()
    ]


def _by_turn(blocks: Sequence[Block], tpot: float) -> dict[int, float]:
    """Return the throughput at a pace for each turn whose own curve reaches it."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for block in blocks:
        curves.setdefault(block.turn, []).append((1 / block.per_user, block.throughput))
    found = {turn: at_pace(curve, tpot) for turn, curve in curves.items()}
    return {turn: speed for turn, speed in found.items() if speed is not None}


def at_pace(curve: Curve, tpot: float) -> float | None:
    """Return the throughput at a pace, on the straight line between the measured neighbours; None beyond the ends."""
    points = sorted(curve)
    for (left, low), (right, high) in pairwise(points):
        if left <= tpot <= right:
            share = (tpot - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return None


def _name(point: Point) -> str:
    return str(point).partition(", ")[2]
