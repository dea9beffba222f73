"""Choose the kept experts from calibration statistics and build a prune plan.

`choose` needs the statistics of all layers and finds super experts across them. `choose_layer` uses one layer alone,
for runs that drop experts before later layers are measured; `gather` builds a plan from such layers. Otherwise both
work the same: super experts and unobserved experts are kept, then the best by score, or the set that `max_min` finds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import SUPER, UNOBSERVED, LayerChoice, PrunePlan
from halfbyte.plan.pruned_router import RouterShape, check_count, keep_count
from halfbyte.prune.budgets import Budgets, water_fill
from halfbyte.prune.coverage import coverage_of
from halfbyte.prune.max_min import best_shares, least_bound, max_min
from halfbyte.prune.protect import super_experts, super_experts_of_layer
from halfbyte.prune.ranking import best, check_room
from halfbyte.prune.restore import restore
from halfbyte.prune.saliency import Scores, layer_scores
from halfbyte.recipe.decisions import Prune

__all__ = ["RouterShape", "choose", "choose_layer", "gather", "keep_count", "restore", "spread", "with_coverage"]

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
