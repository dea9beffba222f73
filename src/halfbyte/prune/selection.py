"""Select experts by score: ranking, the max-min set over domains, budgets per layer, and restoring dropped experts.

Ranking. The lowest scores are dropped and the kept experts stay in ascending order, as in the public REAP code. If the
router has groups, experts are ranked within each group. Of equal scores the lower number is kept: `torch.topk`, used by
that code, leaves ties open and differs between CPU and GPU. The ranking does not depend on the count, so the experts
kept at 192 are also kept at 256.

Max-min. A set's coverage of a domain is the sum of its experts' scores in that domain, divided by the sum for the best
set of that size for this domain alone. Maximizing the worst coverage is NP-hard, so the set is found by search:

1. Compute sets that are best for some blend of the domains. The weights start equal and move towards the domains with
   the worst coverage. The value of each blend is an upper bound for every set, since a set's worst coverage is at most
   any blend of its coverages.
2. Starting from the best of those, and from the set that `mean` would choose, swap one expert for another as long as
   that raises the worst coverage, or keeps it and raises the sum of all.

Guarantees: the set covers its worst domain at least as well as the set of `mean`, no single swap improves it, the same
statistics give the same set on any machine, and the smallest bound of step 1 limits its distance from the optimum.

Budgets. Each layer's scores are divided by their sum, and the experts with the largest shares of all layers are kept:
as many in total as with a uniform count, and at least a minimum in each layer. Within a layer the best are kept first,
so no other budgets with the same total keep a larger sum of shares. With groups or a step, budgets change in blocks of
that size. Stock vLLM and SGLang read one expert count for all layers, so such a plan needs a patched engine (the known
patch reads `num_routed_experts_per_layer` from config.json). A layer's share of scores only approximates the cost of
its loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import RESTORED, UNOBSERVED, LayerChoice, PrunePlan
from halfbyte.plan.pruned import RouterShape

BLENDS = 200
_LEAST_GAIN = 1e-12
Values = NDArray[np.float64]

WARNING = (
    "the layers keep different numbers of experts: stock vLLM and SGLang read one number for all layers and cannot "
    "load this; a patched engine reads num_routed_experts_per_layer"
)


def ranking(scores: NDArray[np.float64], router: RouterShape, first: Collection[int] = ()) -> NDArray[np.int64]:
    """Return [experts per group, groups]: row k has the k-th best expert of each group; those in `first` lead."""
    leads = np.zeros(router.experts, np.bool_)
    leads[list(first)] = True
    columns: list[NDArray[np.int64]] = []
    for group in range(router.n_group):
        members = np.arange(group * router.per_group, (group + 1) * router.per_group)
        order = np.lexsort((members, -scores[members], ~leads[members]))  # the last key is the primary one
        columns.append(members[order])
    return np.stack(columns, axis=1)


def best(scores: NDArray[np.float64], count: int, router: RouterShape, first: Collection[int] = ()) -> tuple[int, ...]:
    """Return the best `count` experts in ascending order."""
    rows = ranking(scores, router, first)[: count // router.n_group]
    return tuple(sorted(int(expert) for expert in rows.reshape(-1)))


def check_room(layer: int, reasons: Mapping[int, str], count: int, router: RouterShape) -> None:
    """Raise if `count` is too small for the experts that must be kept, rather than silently drop one."""
    room = count // router.n_group
    for group in range(router.n_group):
        required = [reason for expert, reason in reasons.items() if expert // router.per_group == group]
        if len(required) <= room:
            continue
        where = f"layer {layer}" + (f", group {group}" if router.n_group > 1 else "")
        kinds = " and ".join(f"{required.count(reason)} {reason}" for reason in sorted(set(required)))
        what = f"{len(required)} experts must be kept ({kinds}), but only {room} can be"
        fix = f"keep {len(required) * router.n_group} or more, or set prune.protect to false"
        if UNOBSERVED in required:
            fix = f"calibrate on more text, keep {len(required) * router.n_group} or more, or lower prune.min_tokens"
        raise UsageError(what, where=where, fix=fix)


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


@dataclass(frozen=True, slots=True)
class Budgets:
    """The number of experts each layer keeps, and its dropped share of scores with these and with uniform counts."""

    counts: Mapping[int, int]
    dropped: Mapping[int, float]
    dropped_uniform: Mapping[int, float]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "counts": {str(layer): count for layer, count in self.counts.items()},
            "dropped": {str(layer): share for layer, share in self.dropped.items()},
            "dropped_uniform": {str(layer): share for layer, share in self.dropped_uniform.items()},
        }

    def line(self) -> str:
        """Return a one-sentence summary."""
        mean, uniform = (_mean(shares) for shares in (self.dropped, self.dropped_uniform))
        fewest, most = min(self.counts.values()), max(self.counts.values())
        return (
            f"keeping {fewest} to {most} experts per layer drops {mean:.1%} of the scores on average; "
            f"{_mean(self.counts):g} in every layer would drop {uniform:.1%}"
        )


def water_fill(
    scores: Mapping[int, NDArray[np.float64]],
    keep: int,
    router: RouterShape,
    *,
    first: Mapping[int, Collection[int]],
    step: int = 1,
) -> Budgets:
    """Distribute an average of `keep` experts per layer over all layers; experts in `first` are always kept."""
    block = math.lcm(step, router.n_group)
    if keep % block or router.experts % block:
        what = f"{keep} of {router.experts} experts cannot be split into blocks of {block}"
        raise UsageError(what, where="prune.keep", fix=f"keep a multiple of {block}, or use a smaller step")
    shares = {
        layer: _relative(values)[_order(values, router, first.get(layer, ()))] for layer, values in scores.items()
    }
    least = {layer: _least(router, first.get(layer, ()), block) for layer in scores}
    free = (keep * len(scores) - sum(least.values())) // block
    if free < 0:
        what = f"the layers need at least {sum(least.values())} experts, but only {keep * len(scores)} would be kept"
        raise UsageError(what, where="prune.keep", fix="keep more, or calibrate on more text")
    gains = [
        (-math.fsum(shares[layer][at : at + block]), layer, at)
        for layer in sorted(scores)
        for at in range(least[layer], router.experts, block)
    ]
    counts = dict(sorted(least.items()))
    for _, layer, _ in sorted(gains)[:free]:
        counts[layer] += block
    return Budgets(
        counts,
        {layer: math.fsum(shares[layer][count:]) for layer, count in counts.items()},
        {layer: math.fsum(shares[layer][keep:]) for layer in counts},
    )


def _relative(values: NDArray[np.float64]) -> NDArray[np.float64]:
    total = math.fsum(values)
    return values / total if total > 0 else values


def _order(values: NDArray[np.float64], router: RouterShape, first: Collection[int]) -> NDArray[np.int64]:
    return ranking(values, router, first).reshape(-1)


def _least(router: RouterShape, first: Collection[int], block: int) -> int:
    """Return the minimum a layer must keep: enough for top-k routing and for the experts in `first`, in every group."""
    per_group = max(2, -(-router.top_k // router.topk_group)) if router.n_group > 1 else router.top_k
    required = [sum(expert // router.per_group == group for expert in first) for group in range(router.n_group)]
    need = max(per_group, *required) * router.n_group
    return -(-need // block) * block


def _mean(values: Mapping[int, float] | Mapping[int, int]) -> float:
    numbers: Sequence[float] = list(values.values())
    return math.fsum(numbers) / len(numbers)


def restore(plan: PrunePlan, more: int) -> PrunePlan:
    """Return a plan that keeps `more` experts in each layer.

    Dropped experts are restored by the plan's own scores; of equal ones the lower number. The new plan has no coverage,
    which would need the statistics.
    """
    if more < 1:
        raise UsageError(f"cannot restore {more} experts", where="--restore", fix="pass a number >= 1")
    if more % plan.router.n_group:
        what = f"{more} experts cannot be split into {plan.router.n_group} groups"
        raise UsageError(what, where="--restore", fix=f"restore a multiple of {plan.router.n_group}")
    rows = {layer: _dropped_rows(layer, choice, plan.router) for layer, choice in sorted(plan.layers.items())}
    blocks = more // plan.router.n_group
    for layer, dropped_rows in rows.items():
        if blocks > len(dropped_rows):
            dropped = len(dropped_rows) * plan.router.n_group
            what = f"cannot restore {more} experts, only {dropped} were dropped"
            raise UsageError(what, where=f"layer {layer}", fix=f"restore {dropped} or fewer")
    layers = {layer: _with(choice, rows[layer][:blocks]) for layer, choice in plan.layers.items()}
    keep = sum(len(choice.kept) for choice in layers.values()) // len(layers)  # the mean if layers differ
    rule = None if plan.rule is None else replace(plan.rule, keep=keep, drop=None)
    return replace(plan, layers=layers, rule=rule, coverage={})


def _dropped_rows(layer: int, choice: LayerChoice, router: RouterShape) -> list[tuple[int, ...]]:
    """Return the dropped experts, best first, with one expert of each group per row."""
    if not choice.scores:
        what = "this plan has no scores to rank the dropped experts by"
        raise UsageError(what, where=f"layer {layer}", fix="pass a plan chosen from statistics")
    scores = np.array([0.0 if score is None else score for score in choice.scores])
    order = ranking(scores, router, choice.kept)[len(choice.kept) // router.n_group :]
    return [tuple(int(expert) for expert in row) for row in order]


def _with(choice: LayerChoice, rows: list[tuple[int, ...]]) -> LayerChoice:
    restored = [expert for row in rows for expert in row]
    reasons = {**choice.reasons, **dict.fromkeys(restored, RESTORED)}
    return LayerChoice(tuple(sorted((*choice.kept, *restored))), choice.scores, dict(sorted(reasons.items())))
