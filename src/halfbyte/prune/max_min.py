"""Choose the expert set that maximizes the coverage of its worst-covered domain.

A set's coverage of a domain is the sum of its experts' scores in that domain, divided by the sum for the best set of
that size for this domain alone. Maximizing the worst coverage is NP-hard, so the set is found by search:

1. Compute sets that are best for some blend of the domains. The weights start equal and move towards the domains with
   the worst coverage. The value of each blend is an upper bound for every set, since a set's worst coverage is at most
   any blend of its coverages.
2. Starting from the best of those, and from the set that `mean` would choose, swap one expert for another as long as
   that raises the worst coverage, or keeps it and raises the sum of all.

Guarantees: the set covers its worst domain at least as well as the set of `mean`, no single swap improves it, the same
statistics give the same set on any machine, and the smallest bound of step 1 limits its distance from the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.plan.pruned_router import RouterShape
from halfbyte.prune.ranking import best

BLENDS = 200
_LEAST_GAIN = 1e-12
Values = NDArray[np.float64]


class MaxMinResult(NamedTuple):
    """A set, its worst coverage, and an upper bound on the worst coverage of any set."""

    kept: tuple[int, ...]
    worst: float
    bound: float


def best_shares(by_domain: Values, count: int, router: RouterShape) -> Values:
    """Return [E, B']: each expert's score as a share of the best set of its domain, without all-zero domains.

    The sum over a set is its coverage.
    """
    columns: list[Values] = []
    for domain in range(by_domain.shape[1]):
        scores = by_domain[:, domain]
        total = math.fsum(scores[list(best(scores, count, router))])
        if total > 0:
            columns.append(scores / total)
    return np.stack(columns, axis=1) if columns else np.zeros((len(by_domain), 0))


def covered(shares: Values, kept: Sequence[int]) -> list[float]:
    """Return a set's coverage of each domain; exact sums, so the order of adding does not matter."""
    rows = shares[list(kept)]
    return [math.fsum(rows[:, domain]) for domain in range(shares.shape[1])]


def max_min(
    shares: Values, count: int, router: RouterShape, first: Collection[int], start: tuple[int, ...]
) -> MaxMinResult:
    """Search for the best set of `count` experts that includes `first`, starting at `start`, which includes it too."""
    if not shares.shape[1]:
        return MaxMinResult(start, 1.0, 1.0)
    best_kept, best_value, bound = start, _value(shares, start), math.inf
    for kept, limit in _blended(shares, count, router, first):
        bound = min(bound, limit)
        if kept != best_kept and (value := _value(shares, kept)) > best_value:
            best_kept, best_value = kept, value
    optima = [_swapped(shares, kept, router, first) for kept in dict.fromkeys((start, best_kept))]
    kept = max(optima, key=lambda kept: _value(shares, kept))
    return MaxMinResult(kept, _value(shares, kept)[0], bound)


def least_bound(by_domain: Values, count: int, router: RouterShape) -> float:
    """Return an upper bound on the worst coverage of any set of `count` experts."""
    shares = best_shares(by_domain, count, router)
    return min((limit for _, limit in _blended(shares, count, router, ())), default=1.0)


def _value(shares: Values, kept: Sequence[int]) -> tuple[float, float]:
    """Return the objective: the worst coverage, then the sum of all."""
    coverage = covered(shares, kept)
    return min(coverage), math.fsum(coverage)


def _blended(
    shares: Values, count: int, router: RouterShape, first: Collection[int]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the best set of each blend, with the blend's value of it."""
    domains = shares.shape[1]
    weights: list[float] = [1.0 / max(domains, 1)] * domains
    for number in range(BLENDS if domains > 1 else domains):
        blend = np.zeros(len(shares))
        for domain, weight in enumerate(weights):  # in order, without BLAS: bit-identical on any machine
            blend = blend + weight * shares[:, domain]
        kept = best(blend, count, router, first)
        coverage = covered(shares, kept)
        value = math.fsum(weight * part for weight, part in zip(weights, coverage, strict=True))
        yield kept, value
        step = 0.5 / math.sqrt(1 + number)
        moved = [weight * (1 + step * (value - part)) for weight, part in zip(weights, coverage, strict=True)]
        weights = [weight / math.fsum(moved) for weight in moved]


def _swapped(shares: Values, start: tuple[int, ...], router: RouterShape, first: Collection[int]) -> tuple[int, ...]:
    """Swap experts within their group while that improves the set. Every swap gains, so this terminates."""
    kept = start
    while (better := _better(shares, kept, router, first)) is not None:
        kept = better
    return kept


def _better(
    shares: Values, kept: tuple[int, ...], router: RouterShape, first: Collection[int]
) -> tuple[int, ...] | None:
    worst, total = _value(shares, kept)
    coverage = covered(shares, kept)
    best_worst: tuple[float, int, int] | None = None  # gain in the worst coverage, expert out, expert in
    best_sum: tuple[float, int, int] | None = None  # gain in the sum, with the worst coverage unchanged
    inside = set(kept)  # ties: the highest number leaves, the lowest enters
    for group in range(router.n_group):
        members = range(group * router.per_group, (group + 1) * router.per_group)
        leaving = [expert for expert in reversed(members) if expert in inside and expert not in first]
        entering = [expert for expert in members if expert not in inside]
        if not leaving or not entering:
            continue
        lowest, total_new = np.full((len(leaving), len(entering)), np.inf), np.zeros((len(leaving), len(entering)))
        for domain, part in enumerate(coverage):
            new = part - shares[leaving, domain][:, None] + shares[entering, domain][None, :]
            lowest, total_new = np.minimum(lowest, new), total_new + new
        at = np.unravel_index(int(lowest.argmax()), lowest.shape)
        best_worst = _larger(best_worst, float(lowest[at]) - worst, leaving[at[0]], entering[at[1]])
        total_new[lowest < worst] = -np.inf
        at = np.unravel_index(int(total_new.argmax()), total_new.shape)
        best_sum = _larger(best_sum, float(total_new[at]) - total, leaving[at[0]], entering[at[1]])
    for swap in (best_worst, best_sum):
        if swap is not None and swap[0] > _LEAST_GAIN:
            new = tuple(sorted(inside - {swap[1]} | {swap[2]}))
            if _value(shares, new) > (worst, total):
                return new
    return None


def _larger(old: tuple[float, int, int] | None, gain: float, out: int, into: int) -> tuple[float, int, int]:
    return old if old is not None and old[0] >= gain else (gain, out, into)
