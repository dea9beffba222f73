"""Compare server A with server B: the ratio at each point, at equal TPOT, and the claims that the data supports.

Two rates are compared: output tokens per second of the whole server, and tokens per second per user. An "up to" claim
picks the best of several ratios, so its intervals are wider: 95 % for all ratios together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from halfbyte.bench.blocks import WARM_UP
from halfbyte.bench.records import Block, whole_pairs
from halfbyte.evidence.benchmark import BenchPoint, EqualTpot, LoadPoint, PointRatio
from halfbyte.statistics.proportions import CONFIDENCE
from halfbyte.statistics.results import Design
from halfbyte.statistics.throughput import throughput_ratio

MEASURES: Mapping[str, Callable[[Block], float]] = {
    "output tokens per second": lambda block: block.throughput,
    "tokens per second per user": lambda block: block.per_user,
}


def compare(
    blocks: Sequence[Block], summaries: Sequence[BenchPoint], no_claim: str, design: Design
) -> list[PointRatio]:
    """Compare A with B at each point where both have blocks. `no_claim` is a reason that forbids every headline."""
    by_point = {(summary.arm, summary.point): summary for summary in summaries}
    wider = 1 - (1 - CONFIDENCE) / max(1, ratio_count(summaries))
    comparisons: list[PointRatio] = []
    for point in _common_points(summaries):
        why = no_claim or by_point["A", point].no_claim_because or by_point["B", point].no_claim_because
        here = [block for block in blocks if block.point == point and block.turn != WARM_UP]
        for measure, value in MEASURES.items():
            speeds = _speeds(here, value, design)
            if not all(speeds):
                continue  # the errors are reported
            individual, simultaneous = (
                throughput_ratio(*speeds, design, no_claim_because=why, confidence=level)
                for level in (CONFIDENCE, wider)
            )
            comparisons.append(
                PointRatio(
                    point=str(point),
                    measure=measure,
                    individual=individual,
                    simultaneous=simultaneous,
                    sentence=f"{point}, {measure}: {individual.sentence()}",
                )
            )
    return comparisons


def ratio_count(summaries: Sequence[BenchPoint]) -> int:
    """Return the number of ratios that the simultaneous intervals cover."""
    return len(_common_points(summaries)) * len(MEASURES)


def _common_points(summaries: Sequence[BenchPoint]) -> list[LoadPoint]:
    others = {summary.point for summary in summaries if summary.arm == "B"}
    return [summary.point for summary in summaries if summary.arm == "A" and summary.point in others]


def not_compared(summaries: Sequence[BenchPoint]) -> list[str]:
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


def headlines(comparisons: Sequence[PointRatio], ratios: int) -> list[str]:
    """Return the claims that hold: the best of each measure, with its point. `ratios` is the number of all ratios."""
    claims: list[str] = []
    for measure in MEASURES:
        holds = [row for row in comparisons if row.measure == measure and row.simultaneous.headline]
        up = [row for row in holds if row.simultaneous.ratio > 1]
        down = [row for row in holds if row.simultaneous.ratio < 1]
        if up:
            claims.append(_claim(max(up, key=lambda row: row.simultaneous.interval or (0.0, 0.0)), ratios))
        if down:
            claims.append(_claim(min(down, key=lambda row: row.simultaneous.ratio), ratios))
    return claims


def _claim(row: PointRatio, ratios: int) -> str:
    low, high = row.simultaneous.interval or (0.0, 0.0)
    interval = f"{100 * CONFIDENCE:.0f} % interval for all {ratios} ratios together {low:.2f} to {high:.2f}"
    claim = f"A gives {row.simultaneous.headline} {row.measure} at {row.point}"
    return f"{claim} ({row.simultaneous.ratio:.2f}x, {interval})"


# Compare the throughput of A and B at equal interactivity (TPOT).
#
# At equal concurrency the faster server also serves each user faster, so that ratio mixes two gains. Here each
# server's throughput at the same TPOT is interpolated between two measured concurrencies. Curves are not
# extrapolated.

_FEWEST = 2  # concurrencies of a curve, and turns of an interval

Curve = Sequence[tuple[float, float]]  # TPOT in seconds, output tokens per second


def equal_tpot(blocks: Sequence[Block], no_claim: str) -> list[EqualTpot]:
    """Compare each shape that both servers were measured with. `no_claim` is a reason that forbids every headline."""
    shapes: dict[tuple[int, int, str], list[Block]] = {}
    for block in whole_pairs([block for block in blocks if block.turn != WARM_UP], "AB"):
        if block.per_user > 0:
            shapes.setdefault((block.point.prompt, block.point.output, block.point.content), []).append(block)
    return [_compare(group, no_claim) for group in shapes.values()]


def _compare(blocks: Sequence[Block], no_claim: str) -> EqualTpot:
    shape = blocks[0].point.shape
    arms = [[block for block in blocks if block.arm == arm] for arm in "AB"]
    whole = [_of_all_turns(arm_blocks) for arm_blocks in arms]
    if any(len(curve) < _FEWEST for curve in whole):
        return _no_ratio(shape, "a curve needs at least two concurrencies")
    low, high = max(min(curve)[0] for curve in whole), min(max(curve)[0] for curve in whole)
    if low > high:
        paces = " and ".join(f"{min(curve)[0] * 1e3:.3g} to {max(curve)[0] * 1e3:.3g}" for curve in whole)
        return _no_ratio(shape, f"TPOT ranges do not overlap ({paces} ms); measure more concurrencies")
    tpot = math.sqrt(low * high)  # geometric middle of the common range
    first, second = (_by_turn(arm_blocks, tpot) for arm_blocks in arms)
    turns = sorted(first.keys() & second.keys())
    if len(turns) < _FEWEST:
        return _no_ratio(shape, f"only {len(turns)} turns of both reach {tpot * 1e3:.3g} ms per token")
    a, b = ([side[turn] for turn in turns] for side in (first, second))
    speedup = throughput_ratio(a, b, "abba", no_claim_because=no_claim)
    sentence = f"{shape}, both at {tpot * 1e3:.3g} ms per token: {speedup.sentence()}"
    return EqualTpot(shape=shape, tpot=tpot, speedup=speedup, sentence=sentence)


def _no_ratio(shape: str, why: str) -> EqualTpot:
    return EqualTpot(shape=shape, tpot=None, speedup=None, sentence=f"{shape}: no ratio at equal TPOT: {why}")


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
    speeds = {turn: at_tpot(curve, tpot) for turn, curve in curves.items()}
    return {turn: speed for turn, speed in speeds.items() if speed is not None}


def at_tpot(curve: Curve, tpot: float) -> float | None:
    """Interpolate the throughput at a TPOT linearly. Return None outside the measured range."""
    points = sorted(curve)
    for (left, low), (right, high) in pairwise(points):
        if left <= tpot <= right:
            share = (tpot - left) / (right - left) if right > left else 0.0
            return low + share * (high - low)
    return None
