"""Non-uniform expert budgets per layer, by water-filling on normalized scores.

Each layer's scores are divided by their sum, and the experts with the largest shares of all layers are kept: as many in
total as with a uniform count, and at least a minimum in each layer. Within a layer the best are kept first, so no other
budgets with the same total keep a larger sum of shares. With groups or a step, budgets change in blocks of that size.

Stock vLLM and SGLang read one expert count for all layers, so such a plan needs a patched engine (the known patch reads
`num_routed_experts_per_layer` from config.json). A layer's share of scores only approximates the cost of its loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.plan.pruned_router import RouterShape
from halfbyte.prune.ranking import ranking

WARNING = (
    "the layers keep different numbers of experts: stock vLLM and SGLang read one number for all layers and cannot "
    "load this; a patched engine reads num_routed_experts_per_layer"
)


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
