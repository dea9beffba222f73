"""How many experts each layer keeps, where layers may differ: water-filling on scores relative to their layer.

Each layer's scores are divided by their sum, and the experts with the largest shares of all layers stay, as many as a
uniform cut would keep, with a least number in each layer. Within a layer the best stay first, so no other spread of the
same number keeps a larger sum of shares. With groups, or with a step, experts come and go in blocks of that many.

Stock vLLM and SGLang read one number for all layers: such a plan is for those who patch theirs (the known patch reads
`num_routed_experts_per_layer` from config.json), and a layer's share of scores is a guess at what its loss costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.errors import UsageError
from halfbyte.prune.ranking import ranking
from halfbyte.prune.router import RouterShape

WARNING = (
    "the layers keep different numbers of experts: stock vLLM and SGLang read one number for all layers and cannot "
    "load this; a patched engine reads num_routed_experts_per_layer"
)


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many experts each layer keeps, and the share of its scores that goes: so, and with one number for all."""

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
        """Return the whole in a sentence."""
        so, uniform = (_mean(shares) for shares in (self.dropped, self.dropped_uniform))
        fewest, most = min(self.counts.values()), max(self.counts.values())
        return (
            f"{fewest} to {most} experts a layer would drop {so:.1%} of the scores on average, "
            f"{_mean(self.counts):g} in each layer {uniform:.1%}"
        )


def water_fill(
    scores: Mapping[int, NDArray[np.float64]],
    keep: int,
    router: RouterShape,
    *,
    first: Mapping[int, Collection[int]],
    step: int = 1,
) -> Budgets:
    """Spread `keep` experts a layer over all layers; those of `first` stay in any case."""
    block = math.lcm(step, router.n_group)
    if keep % block or router.experts % block:
        what = f"{keep} of {router.experts} experts do not divide into blocks of {block}"
        raise UsageError(what, where="prune.keep", fix=f"keep a multiple of {block}, or spread in smaller steps")
    shares = {
        layer: _relative(values)[_order(values, router, first.get(layer, ()))] for layer, values in scores.items()
    }
    least = {layer: _least(router, first.get(layer, ()), block) for layer in scores}
    free = (keep * len(scores) - sum(least.values())) // block
    if free < 0:
        what = f"the layers need {sum(least.values())} experts, and {keep * len(scores)} are to stay"
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
    whole = math.fsum(values)
    return values / whole if whole > 0 else values


def _order(values: NDArray[np.float64], router: RouterShape, first: Collection[int]) -> NDArray[np.int64]:
    return ranking(values, router, first).reshape(-1)


def _least(router: RouterShape, first: Collection[int], block: int) -> int:
    """Return what a layer cannot do without: what a token needs of it, and who stays in any case, in any group."""
    each = max(2, -(-router.top_k // router.topk_group)) if router.n_group > 1 else router.top_k
    held = [sum(expert // router.per_group == group for expert in first) for group in range(router.n_group)]
    need = max(each, *held) * router.n_group
    return -(-need // block) * block


def _mean(values: Mapping[int, float] | Mapping[int, int]) -> float:
    found: Sequence[float] = list(values.values())
    return math.fsum(found) / len(found)
