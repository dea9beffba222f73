"""The set of experts with which the domain that loses most loses least.

A set's coverage of a domain is the sum of its experts' scores in that domain, divided by what the best set of that size
for this domain alone would have. To find the set whose worst coverage is largest is NP-hard, so it is searched for:

1. Sets that are best for some blend of the domains. The blend's weights start alike and move towards the domains that
   are covered worst. The value of each of them bounds every set from above, since the worst coverage of a set is never
   above a blend of its coverages.
2. From the best of those, and from the set that `mean` would choose, one expert is exchanged for another as long as
   that raises the worst coverage, or leaves it and raises the sum of all.

What is promised: the set covers its worst domain at least as well as the set of `mean`, no single exchange improves it,
the same statistics give the same set on any machine, and the smallest bound of step 1 says how far from the best it can
be at most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.prune.ranking import best
from halfbyte.prune.router import RouterShape

BLENDS = 200
_LEAST_GAIN = 1e-12
Values = NDArray[np.float64]


class Searched(NamedTuple):
    """A set, how well it covers its worst domain, and what no set can exceed there."""

    kept: tuple[int, ...]
    worst: float
    bound: float


def best_shares(by_domain: Values, count: int, router: RouterShape) -> Values:
    """Return [E, B']: the share of each expert in the best set of its domain; domains without any score are left out.

    Their sum over a set is what that set covers.
    """
    columns: list[Values] = []
    for domain in range(by_domain.shape[1]):
        scores = by_domain[:, domain]
        whole = math.fsum(scores[list(best(scores, count, router))])
        if whole > 0:
            columns.append(scores / whole)
    return np.stack(columns, axis=1) if columns else np.zeros((len(by_domain), 0))


def covered(shares: Values, kept: Sequence[int]) -> list[float]:
    """Return what a set covers of each domain: exact sums, so that no order of adding matters."""
    held = shares[list(kept)]
    return [math.fsum(held[:, domain]) for domain in range(shares.shape[1])]


def max_min(
    shares: Values, count: int, router: RouterShape, first: Collection[int], start: tuple[int, ...]
) -> Searched:
    """Search the set of `count` experts, with all of `first`, beginning at `start`, which has them too."""
    if not shares.shape[1]:
        return Searched(start, 1.0, 1.0)
    found, most, bound = start, _value(shares, start), math.inf
    for kept, limit in _blended(shares, count, router, first):
        bound = min(bound, limit)
        if kept != found and (value := _value(shares, kept)) > most:
            found, most = kept, value
    ends = [_exchanged(shares, kept, router, first) for kept in dict.fromkeys((start, found))]
    kept = max(ends, key=lambda kept: _value(shares, kept))
    return Searched(kept, _value(shares, kept)[0], bound)


def least_bound(by_domain: Values, count: int, router: RouterShape) -> float:
    """Return what the worst coverage of no set of `count` experts can exceed."""
    shares = best_shares(by_domain, count, router)
    return min((limit for _, limit in _blended(shares, count, router, ())), default=1.0)


def _value(shares: Values, kept: Sequence[int]) -> tuple[float, float]:
    """What is maximised: the worst coverage, then the sum of all."""
    found = covered(shares, kept)
    return min(found), math.fsum(found)


def _blended(
    shares: Values, count: int, router: RouterShape, first: Collection[int]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the best sets of blends, each with the blend's value of it."""
    domains = shares.shape[1]
    weights: list[float] = [1.0 / max(domains, 1)] * domains
    for number in range(BLENDS if domains > 1 else domains):
        blend = np.zeros(len(shares))
        for domain, weight in enumerate(weights):  # in order, not by BLAS: the same bits on any machine
            blend = blend + weight * shares[:, domain]
        kept = best(blend, count, router, first)
        found = covered(shares, kept)
        value = math.fsum(weight * part for weight, part in zip(weights, found, strict=True))
        yield kept, value
        step = 0.5 / math.sqrt(1 + number)
        moved = [weight * (1 + step * (value - part)) for weight, part in zip(weights, found, strict=True)]
        weights = [weight / math.fsum(moved) for weight in moved]


def _exchanged(shares: Values, start: tuple[int, ...], router: RouterShape, first: Collection[int]) -> tuple[int, ...]:
    """Exchange one expert for another of its group while that helps. Every exchange gains, so this ends."""
    kept = start
    while (better := _better(shares, kept, router, first)) is not None:
        kept = better
    return kept


def _better(
    shares: Values, kept: tuple[int, ...], router: RouterShape, first: Collection[int]
) -> tuple[int, ...] | None:
    worst, total = _value(shares, kept)
    now = covered(shares, kept)
    raised: tuple[float, int, int] | None = None  # gain of the worst, who goes, who comes
    filled: tuple[float, int, int] | None = None  # gain of the sum, with the worst as it is
    inside = set(kept)  # of equals, the highest number goes and the lowest comes
    for group in range(router.n_group):
        members = range(group * router.per_group, (group + 1) * router.per_group)
        goes = [expert for expert in reversed(members) if expert in inside and expert not in first]
        comes = [expert for expert in members if expert not in inside]
        if not goes or not comes:
            continue
        lowest, whole = np.full((len(goes), len(comes)), np.inf), np.zeros((len(goes), len(comes)))
        for domain, part in enumerate(now):
            new = part - shares[goes, domain][:, None] + shares[comes, domain][None, :]
            lowest, whole = np.minimum(lowest, new), whole + new
        at = np.unravel_index(int(lowest.argmax()), lowest.shape)
        raised = _larger(raised, float(lowest[at]) - worst, goes[at[0]], comes[at[1]])
        whole[lowest < worst] = -np.inf
        at = np.unravel_index(int(whole.argmax()), whole.shape)
        filled = _larger(filled, float(whole[at]) - total, goes[at[0]], comes[at[1]])
    for swap in (raised, filled):
        if swap is not None and swap[0] > _LEAST_GAIN:
            new = tuple(sorted(inside - {swap[1]} | {swap[2]}))
            if _value(shares, new) > (worst, total):
                return new
    return None


def _larger(found: tuple[float, int, int] | None, gain: float, goes: int, comes: int) -> tuple[float, int, int]:
    return found if found is not None and found[0] >= gain else (gain, goes, comes)
