"""Coverage of each domain by the kept experts, computed before anything is served.

The coverage of a domain in a layer is the sum of the kept experts' scores on that domain's tokens, divided by the sum
for the best set of the same size for this domain alone: at 46%, a build for this domain would keep twice as much.
`mass` is the same for every criterion: the share of the routed experts' output on this domain's tokens (the sum of
g n) that comes from kept experts. `dropped` is the dropped share of a layer's scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.plan.pruned_router import RouterShape
from halfbyte.prune.max_min import best_shares, covered
from halfbyte.prune.saliency import Scores


def coverage_of(
    kept: Mapping[int, Sequence[int]], scores: Mapping[int, Scores], domains: Sequence[str], router: RouterShape
) -> dict[str, Any]:
    """Return a plan's `coverage`, by domain and by layer; null for a domain without tokens."""
    by_layer = {layer: _layer(kept[layer], scores[layer], domains, router) for layer in sorted(kept)}
    by_domain = {domain: _domain(domain, by_layer) for domain in domains}
    return {"domains": by_domain, "layers": {str(layer): entry for layer, entry in by_layer.items()}}


def _layer(kept: Sequence[int], scores: Scores, domains: Sequence[str], router: RouterShape) -> dict[str, Any]:
    coverage: dict[str, float | None] = {}
    mass: dict[str, float | None] = {}
    for number, domain in enumerate(domains):
        shares = best_shares(scores.by_domain[:, number : number + 1], len(kept), router)
        coverage[domain] = covered(shares, kept)[0] if shares.shape[1] else None
        mass[domain] = _share(scores.mass[:, number], kept)
    measured = {domain: value for domain, value in coverage.items() if value is not None}
    worst = min(measured, key=lambda domain: measured[domain], default=None)
    kept_share = _share(scores.blended, kept)
    return {
        "dropped": None if kept_share is None else max(0.0, 1.0 - kept_share),
        "worst_domain": worst,
        "covered": coverage,
        "mass": mass,
    }


def _domain(domain: str, by_layer: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    coverage = {layer: row["covered"][domain] for layer, row in by_layer.items() if row["covered"][domain] is not None}
    if not coverage:
        return None
    worst = min(coverage, key=lambda layer: coverage[layer])
    mass = [row["mass"][domain] for row in by_layer.values() if row["mass"][domain] is not None]
    return {"mean": _mean(coverage.values()), "worst": coverage[worst], "worst_layer": worst, "mass": _mean(mass)}


def _share(values: NDArray[np.float64], kept: Sequence[int]) -> float | None:
    total = math.fsum(values)
    return math.fsum(values[list(kept)]) / total if total > 0 else None


def _mean(values: Any) -> float | None:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None
