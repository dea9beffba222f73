"""Compare the throughput of A and B at equal interactivity (TPOT).

At equal concurrency the faster server also serves each user faster, so that ratio mixes two gains. Here each server's
throughput at the same TPOT is interpolated between two measured concurrencies. Curves are not extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from halfbyte.bench.blocks import WARM_UP
from halfbyte.bench.records import Block, whole_pairs
from halfbyte.bench.shapes import Point
from halfbyte.statistics.throughput import Speedup, throughput_ratio

_FEWEST = 2  # concurrencies of a curve, and turns of an interval

Curve = Sequence[tuple[float, float]]  # TPOT in seconds, output tokens per second


@dataclass(frozen=True, slots=True)
class EqualPace:
    """The throughput ratio of one shape at equal TPOT, or why there is none."""

    shape: str
    tpot: float | None = None
    speedup: Speedup | None = None
    why_not: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        speedup = self.speedup.as_dict() if self.speedup else None
        return {"shape": self.shape, "tpot": self.tpot, "found": speedup, "sentence": self.sentence()}

    def sentence(self) -> str:
        """Return the result as a sentence."""
        if self.tpot is None or self.speedup is None:
            return f"{self.shape}: no ratio at equal TPOT: {self.why_not}"
        return f"{self.shape}, both at {self.tpot * 1e3:.3g} ms per token: {self.speedup.sentence()}"


def equal_pace(blocks: Sequence[Block], no_claim: str) -> list[EqualPace]:
    """Compare each shape that both servers were measured with. `no_claim` is a reason that forbids every headline."""
    shapes: dict[tuple[int, int, str], list[Block]] = {}
    for block in whole_pairs([block for block in blocks if block.turn != WARM_UP], "AB"):
        if block.per_user > 0:
            shapes.setdefault((block.point.prompt, block.point.output, block.point.content), []).append(block)
    return [_compare(group, no_claim) for group in shapes.values()]


def _compare(blocks: Sequence[Block], no_claim: str) -> EqualPace:
    shape = _name(blocks[0].point)
    arms = [[block for block in blocks if block.arm == arm] for arm in "AB"]
    whole = [_of_all_turns(arm_blocks) for arm_blocks in arms]
    if any(len(curve) < _FEWEST for curve in whole):
        return EqualPace(shape, why_not="a curve needs at least two concurrencies")
    low, high = max(min(curve)[0] for curve in whole), min(max(curve)[0] for curve in whole)
    if low > high:
        paces = " and ".join(f"{min(curve)[0] * 1e3:.3g} to {max(curve)[0] * 1e3:.3g}" for curve in whole)
        return EqualPace(shape, why_not=f"TPOT ranges do not overlap ({paces} ms); measure more concurrencies")
    tpot = math.sqrt(low * high)  # geometric middle of the common range
    first, second = (_by_turn(arm_blocks, tpot) for arm_blocks in arms)
    turns = sorted(first.keys() & second.keys())
    if len(turns) < _FEWEST:
        return EqualPace(shape, why_not=f"only {len(turns)} turns of both reach {tpot * 1e3:.3g} ms per token")
    a, b = ([side[turn] for turn in turns] for side in (first, second))
    return EqualPace(shape, tpot, throughput_ratio(a, b, "abba", no_claim_because=no_claim))


def _of_all_turns(blocks: Sequence[Block]) -> Curve:
    """Return one point per concurrency, the mean over its blocks."""
    by_users: dict[int, list[Block]] = {}
    for block in blocks:
        by_users.setdefault(block.point.concurrency, []).append(block)
    return [
        (sum(1 / block.per_user for block in group) / len(group), sum(block.throughput for block in group) / len(group))
        for group in by_users.values()
    ]


def _by_turn(blocks: Sequence[Block], tpot: float) -> dict[int, float]:
    """Return the throughput at a TPOT for each turn whose curve reaches it."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for block in blocks:
        curves.setdefault(block.turn, []).append((1 / block.per_user, block.throughput))
    speeds = {turn: at_pace(curve, tpot) for turn, curve in curves.items()}
    return {turn: speed for turn, speed in speeds.items() if speed is not None}


def at_pace(curve: Curve, tpot: float) -> float | None:
    """Interpolate the throughput at a TPOT linearly. Return None outside the measured range."""
    points = sorted(curve)
    for (left, low), (right, high) in pairwise(points):
        if left <= tpot <= right:
            share = (tpot - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return None


def _name(point: Point) -> str:
    return str(point).partition(", ")[2]
