"""Choose the kept experts from calibration statistics, build a prune plan, and compute its coverage of each domain.

`choose` needs the statistics of all layers and finds super experts across them. `choose_layer` uses one layer alone,
for runs that drop experts before later layers are measured; `gather` builds a plan from such layers. Otherwise both
work the same: super experts and unobserved experts are kept, then the best by score, or the set that `max_min` finds.

The coverage of a domain in a layer is the sum of the kept experts' scores on that domain's tokens, divided by the sum
for the best set of the same size for this domain alone: at 46%, a build for this domain would keep twice as much.
`mass` is the same for every criterion: the share of the routed experts' output on this domain's tokens (the sum of
g n) that comes from kept experts. `dropped` is the dropped share of a layer's scores.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import SUPER, UNOBSERVED, LayerChoice, PrunePlan
from halfbyte.plan.pruned import RouterShape, check_count, keep_count
from halfbyte.prune.saliency import Scores, layer_scores, super_experts, super_experts_of_layer
from halfbyte.prune.selection import (
    Budgets,
    best,
    best_shares,
    check_room,
    covered,
    least_bound,
    max_min,
    water_fill,
)
from halfbyte.recipe.decisions import Prune

ACROSS, ALONE = "across layers", "in each layer"


def choose(
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
    *,
    layers_expected: Collection[int],
    counts: Mapping[int, int] | None = None,
) -> PrunePlan:
    """Choose the experts of all layers. `counts` sets a number for each layer, as proposed by `spread`."""
    scores, protected = _score_layers(layers, domains, rule, router, layers_expected)
    counts = dict.fromkeys(scores, keep_count(rule, router)) if counts is None else counts
    chosen: dict[int, LayerChoice] = {}
    for layer, layer_score in scores.items():
        check_count(counts[layer], router, where=f"layer {layer}")
        chosen[layer] = _chosen(layer, layer_score, protected[layer], counts[layer], rule, router)
    return _plan(chosen, scores, domains, rule, router, judged=ACROSS)


def choose_layer(
    layer: int, stats: LayerStats, domains: Sequence[str], rule: Prune, router: RouterShape
) -> LayerChoice:
    """Choose the experts of one layer from its statistics alone."""
    count = keep_count(rule, router)
    scores = layer_scores(layer, stats, domains, rule, router)
    assert stats.experts is not None  # `layer_scores` raises otherwise
    supers = super_experts_of_layer(layer, stats.experts) if rule.protect else ()
    return _chosen(layer, scores, _protected(scores, supers), count, rule, router)


def gather(
    choices: Mapping[int, LayerChoice],
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
) -> PrunePlan:
    """Build a plan from layers that were chosen one by one."""
    scores = {layer: layer_scores(layer, layers[layer], domains, rule, router) for layer in sorted(choices)}
    return _plan(choices, scores, domains, rule, router, judged=ALONE)


def with_coverage(plan: PrunePlan, layers: Mapping[int, LayerStats], domains: Sequence[str], rule: Prune) -> PrunePlan:
    """Return a restored, edited or imported plan with its coverage by a rule's criterion."""
    scores = {layer: layer_scores(layer, layers[layer], domains, rule, plan.router) for layer in sorted(plan.layers)}
    return replace(plan, coverage=coverage_of(plan.kept(), scores, domains, plan.router))


def spread(
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
    *,
    layers_expected: Collection[int],
    step: int = 1,
) -> Budgets:
    """Propose non-uniform expert counts per layer, for the `counts` of `choose`."""
    scores, protected = _score_layers(layers, domains, rule, router, layers_expected)
    blended = {layer: layer_score.blended for layer, layer_score in scores.items()}
    return water_fill(blended, keep_count(rule, router), router, first=protected, step=step)


def _score_layers(
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
    layers_expected: Collection[int],
) -> tuple[dict[int, Scores], dict[int, dict[int, str]]]:
    """Return the scores of every layer, and its protected experts with their reasons."""
    keep_count(rule, router)  # validates the rule first
    missing = sorted(layer for layer in layers_expected if layer not in layers)
    if missing:
        what = f"these statistics lack layer {missing[0]}"
        fix = "measure all layers: halfbyte calibrate without --layers"
        raise UsageError(what, where="the statistics", fix=fix)
    wanted = sorted(layers_expected)
    scores = {layer: layer_scores(layer, layers[layer], domains, rule, router) for layer in wanted}
    experts = {layer: stats for layer in wanted if (stats := layers[layer].experts) is not None}
    supers = super_experts(experts) if rule.protect else {}
    return scores, {layer: _protected(score, supers.get(layer, ())) for layer, score in scores.items()}


def _protected(scores: Scores, supers: Collection[int]) -> dict[int, str]:
    unobserved = {expert: UNOBSERVED for expert, observed in enumerate(scores.observed) if not observed}
    return dict(sorted({**unobserved, **dict.fromkeys(supers, SUPER)}.items()))


def _chosen(
    layer: int, scores: Scores, protected: Mapping[int, str], count: int, rule: Prune, router: RouterShape
) -> LayerChoice:
    check_room(layer, protected, count, router)
    kept = best(scores.blended, count, router, protected)
    if rule.select == "max_min":
        shares = best_shares(scores.by_domain, count, router)
        kept = max_min(shares, count, router, protected, kept).kept
    observed = zip(scores.blended, scores.observed, strict=True)
    return LayerChoice(kept, tuple(float(score) if seen else None for score, seen in observed), dict(protected))


def _plan(
    chosen: Mapping[int, LayerChoice],
    scores: Mapping[int, Scores],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
    *,
    judged: str,
) -> PrunePlan:
    kept = {layer: choice.kept for layer, choice in sorted(chosen.items())}
    coverage: dict[str, Any] = {"super_experts": judged if rule.protect else None}
    coverage |= coverage_of(kept, scores, domains, router)
    if rule.select == "max_min":
        for layer, layer_score in scores.items():
            coverage["layers"][str(layer)]["bound"] = least_bound(layer_score.by_domain, len(kept[layer]), router)
    return PrunePlan(
        router=router,
        layers=dict(sorted(chosen.items())),
        rule=rule,
        coverage=coverage,
        non_uniform=len({len(experts) for experts in kept.values()}) > 1,
    )


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
