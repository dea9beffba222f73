"""What the kept experts cover of each domain, known before anything is served.

The coverage of a domain in a layer is the sum of the kept experts' scores by that domain's tokens alone, divided by
what the best set of that size for this domain would have: 46 % says that a build for this domain would have kept twice
as much. `mass` is another view, and the same for every criterion: the share of all that routed experts added to this
domain's tokens (the sum of g n) that came from the kept ones. `dropped` is the share of a layer's scores that goes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.prune.max_min import best_shares, covered
from halfbyte.prune.router import RouterShape
from halfbyte.prune.saliency import Scores


def coverage_of(
    kept: Mapping[int, Sequence[int]], scores: Mapping[int, Scores], domains: Sequence[str], router: RouterShape
) -> dict[str, Any]:
    """Return what a plan's `coverage` says, by domain and by layer; null where a domain had no tokens."""
    by_layer = {layer: _layer(kept[layer], scores[layer], domains, router) for layer in sorted(kept)}
    by_domain = {domain: _domain(domain, by_layer) for domain in domains}
    return {"domains": by_domain, "layers": {str(layer): found for layer, found in by_layer.items()}}


def _layer(kept: Sequence[int], scores: Scores, domains: Sequence[str], router: RouterShape) -> dict[str, Any]:
    found: dict[str, float | None] = {}
    mass: dict[str, float | None] = {}
    for number, domain in enumerate(domains):
        shares = best_shares(scores.by_domain[:, number : number + 1], len(kept), router)
        found[domain] = covered(shares, kept)[0] if shares.shape[1] else None
        mass[domain] = _share(scores.mass[:, number], kept)
    measured = {domain: value for domain, value in found.items() if value is not None}
    worst = min(measured, key=lambda domain: measured[domain], default=None)
    held = _share(scores.blended, kept)
    return {
        "dropped": None if held is None else max(0.0, 1.0 - held),
        "worst_domain": worst,
        "covered": found,
        "mass": mass,
    }


def _domain(domain: str, by_layer: Mapping[int, Mapping[str, Any]]) -> dict[str, Any] | None:
    found = {layer: of["covered"][domain] for layer, of in by_layer.items() if of["covered"][domain] is not None}
    if not found:
        return None
    worst = min(found, key=lambda layer: found[layer])
    mass = [of["mass"][domain] for of in by_layer.values() if of["mass"][domain] is not None]
    return {"mean": _mean(found.values()), "worst": found[worst], "worst_layer": worst, "mass": _mean(mass)}


def _share(values: NDArray[np.float64], kept: Sequence[int]) -> float | None:
    whole = math.fsum(values)
    return math.fsum(values[list(kept)]) / whole if whole > 0 else None


def _mean(values: Any) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None
