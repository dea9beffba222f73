"""Compare the throughput of two servers: their ratio with an interval, and a headline only if it holds.

abba         both servers run and alternate, A B B A A B B A ..., so slow drift affects both equally. Neighbors are
             pairs. The interval is Student's t over the logarithms of their ratios.
sequential   first A, then B, if both cannot run at once. The ratio includes drift and deployment variance, which one
             start cannot estimate, so the unit is the server start: Welch's t over at least two starts.

The headline is the lower bound: "at least 49 % more", not "58 % more".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.statistics.distributions import t_quantile, t_two_sided
from halfbyte.statistics.proportions import CONFIDENCE
from halfbyte.statistics.results import Design, Interval, Speedup
from halfbyte.statistics.sampling import Mean, bootstrap, mean_over_items

Blocks = Sequence[float] | NDArray[Any]
Logs = NDArray[np.float64]

FEWEST_BLOCKS = 6  # per arm, alternating; fewer give an interval but no headline
FEWEST_STARTS = 2  # per arm, sequential
LEAST = 0.001  # smallest difference of a headline
DRIFT_P = 0.01


def throughput_ratio(
    blocks_a: Blocks | Sequence[Blocks],
    blocks_b: Blocks | Sequence[Blocks],
    design: Design = "abba",
    *,
    seed: int = 0,
    no_claim_because: str = "",
    confidence: float = CONFIDENCE,
) -> Speedup:
    """Return the throughput of A relative to B.

    abba: one throughput per block in time order, equally many for A and B, starting with A. sequential: one list of
    blocks per server start. A plain list is one start. `no_claim_because` is another reason against a headline, such as
    an emulated server or errors. To pick the best of k ratios, use a `confidence` of 1 - 0.05 / k.
    """
    if design == "abba":
        return _abba(_logs(blocks_a), _logs(blocks_b), seed, no_claim_because, confidence)
    return _sequential(_starts(blocks_a), _starts(blocks_b), no_claim_because, confidence)


def drift_of(blocks: Blocks) -> tuple[float | None, float | None]:
    """Return the relative change in speed of one server over its blocks, and its p-value."""
    logs = _logs(blocks)
    return _drift([(logs, np.arange(len(logs)))])


def _abba(a: Logs, b: Logs, seed: int, no_claim: str, confidence: float) -> Speedup:
    if len(a) != len(b):
        raise UsageError(f"{len(a)} blocks of A and {len(b)} of B are not pairs", fix="measure A and B in pairs")
    mean = mean_over_items(a - b)
    turn = np.arange(len(a))
    swapped = turn % 2  # A B, B A, A B, ...
    drift, p = _drift([(a, 2 * turn + swapped), (b, 2 * turn + 1 - swapped)])
    interval = _ratios(mean.interval(confidence)) if len(a) > 1 else None
    few = f"{len(a)} blocks per arm, {FEWEST_BLOCKS} needed" if len(a) < FEWEST_BLOCKS else ""
    why = no_claim or few or _why_not(interval)
    return Speedup(
        design="abba",
        ratio=math.exp(mean.value),
        interval=interval,
        bootstrap=_ratios(bootstrap(a - b, None, confidence, seed)) if len(a) > 1 else None,
        units=(len(a), len(b)),
        drift=drift,
        drift_p=p,
        no_claim_because=why,
        confidence=confidence,
        drift_significant=p is not None and p < DRIFT_P,
        headline=_headline(interval, why),
    )


def _sequential(a: list[Logs], b: list[Logs], no_claim: str, confidence: float) -> Speedup:
    means = [np.array([float(start.mean()) for start in arm]) for arm in (a, b)]
    difference = float(means[0].mean() - means[1].mean())
    few = min(len(a), len(b)) < FEWEST_STARTS
    interval = None if few else _ratios(_welch_interval(*map(mean_over_items, means), confidence=confidence))
    drift, p = _drift([(start, np.arange(len(start))) for start in (*a, *b)])
    few_starts = f"{len(a)} and {len(b)} server starts, {FEWEST_STARTS} per arm needed"
    why = no_claim or (few_starts if few else _why_not(interval))
    return Speedup(
        design="sequential",
        ratio=math.exp(difference),
        interval=interval,
        bootstrap=None,
        units=(len(a), len(b)),
        drift=drift,
        drift_p=p,
        no_claim_because=why,
        confidence=confidence,
        drift_significant=p is not None and p < DRIFT_P,
        headline=_headline(interval, why),
    )


def _headline(interval: Interval | None, no_claim: str) -> str | None:
    """Return the claim that the data supports, or None."""
    if no_claim or interval is None:
        return None
    low, high = interval
    # Rounded down, because the claim is a lower bound.
    percent = math.floor(1000 * max(low - 1, 1 - high)) / 10
    return f"at least {percent:g} % {'more' if low > 1 else 'less'}"


def _why_not(interval: Interval | None) -> str:
    """Return why the interval supports no headline, or an empty string."""
    if interval is not None and interval[0] == interval[1]:
        return "the figures have no variance, so they are rounded too coarsely or not measured"
    if interval is None or max(interval[0] - 1, 1 - interval[1]) >= LEAST:
        return ""
    return "no significant difference: the interval includes 1 or nearly does"


def _welch_interval(a: Mean, b: Mean, *, confidence: float) -> Interval:
    error, difference = math.hypot(a.error, b.error), a.value - b.value
    if not error:
        return difference, difference
    freedom = error**4 / (a.error**4 / a.freedom + b.error**4 / b.freedom)
    half = t_quantile((1 + confidence) / 2, freedom) * error
    return difference - half, difference + half


def _drift(series: list[tuple[Logs, NDArray[Any]]]) -> tuple[float | None, float | None]:
    """Fit one slope to all series, each with its own level. Return the change over the run and its p-value."""
    levels = len(series)
    values = np.concatenate([logs for logs, _ in series])
    times = np.concatenate([time - time.mean() for _, time in series])
    freedom = len(values) - levels - 1
    if freedom < 1 or not times.any():
        return None, None
    rest = np.concatenate([logs - logs.mean() for logs, _ in series])
    weight = float(times @ times)
    slope = float(times @ rest) / weight
    left = rest - slope * times
    error = math.sqrt(float(left @ left) / freedom / weight)
    span = max(int(time.max() - time.min()) for _, time in series)
    p = t_two_sided(slope / error, freedom) if error else float(slope == 0)
    return math.expm1(slope * span), p


def _logs(blocks: Any) -> Logs:
    speeds = np.asarray(blocks, np.float64)
    if speeds.ndim != 1 or not speeds.size or not (np.isfinite(speeds).all() and (speeds > 0).all()):
        raise UsageError(
            "throughputs must be a list of positive numbers, one per block",
            fix="report failed blocks as errors, not as speeds",
        )
    return np.log(speeds)


def _starts(blocks: Any) -> list[Logs]:
    """Return the blocks of each server start. A plain list of numbers is one start."""
    nested = all(np.ndim(start) for start in blocks) and len(blocks) > 0
    return [_logs(start) for start in blocks] if nested else [_logs(blocks)]


def _ratios(interval: Interval) -> Interval:
    return math.exp(interval[0]), math.exp(interval[1])
