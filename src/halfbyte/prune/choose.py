"""From the statistics of experts to the plan of who stays.

`choose` has all layers before it and looks for super experts across them. `choose_layer` has one, for a run that drops
experts while later layers are still measured, and looks for them in that layer alone; `gather` makes a plan of such
layers. All else is the same: super experts and experts that were not observed stay, then the best by score, or the set
that `max_min` finds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.prune.budgets import Budgets, water_fill
from halfbyte.prune.coverage import coverage_of
from halfbyte.prune.max_min import best_shares, least_bound, max_min
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.prune.protect import super_experts, super_experts_of_layer
from halfbyte.prune.ranking import SUPER, UNOBSERVED, best, check_room
from halfbyte.prune.restore import restore
from halfbyte.prune.router import RouterShape, check_count, keep_count
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
    """Choose the experts of all layers. `counts` lets layers keep different numbers, as `spread` proposes them."""
    scores, stays = _rated(layers, domains, rule, router, layers_expected)
    counts = dict.fromkeys(scores, keep_count(rule, router)) if counts is None else counts
    chosen: dict[int, LayerChoice] = {}
    for layer, found in scores.items():
        check_count(counts[layer], router, where=f"layer {layer}")
        chosen[layer] = _chosen(layer, found, stays[layer], counts[layer], rule, router)
    return _plan(chosen, scores, domains, rule, router, judged=ACROSS)


def choose_layer(
    layer: int, stats: LayerStats, domains: Sequence[str], rule: Prune, router: RouterShape
) -> LayerChoice:
    """Choose the experts of one layer by itself."""
    count = keep_count(rule, router)
    scores = layer_scores(layer, stats, domains, rule, router)
    assert stats.experts is not None  # or there would be no scores
    supers = super_experts_of_layer(layer, stats.experts) if rule.protect else ()
    return _chosen(layer, scores, _stays(scores, supers), count, rule, router)


def gather(
    choices: Mapping[int, LayerChoice],
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
) -> PrunePlan:
    """Make a plan of layers that were chosen one by one."""
    scores = {layer: layer_scores(layer, layers[layer], domains, rule, router) for layer in sorted(choices)}
    return _plan(choices, scores, domains, rule, router, judged=ALONE)


def with_coverage(plan: PrunePlan, layers: Mapping[int, LayerStats], domains: Sequence[str], rule: Prune) -> PrunePlan:
    """Return a restored, edited or foreign plan with what it covers, by a rule's criterion."""
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
    """Propose how many experts each layer keeps, if it need not be the same number; `choose` takes the counts."""
    scores, stays = _rated(layers, domains, rule, router, layers_expected)
    blended = {layer: found.blended for layer, found in scores.items()}
    return water_fill(blended, keep_count(rule, router), router, first=stays, step=step)


def _rated(
    layers: Mapping[int, LayerStats],
    domains: Sequence[str],
    rule: Prune,
    router: RouterShape,
    layers_expected: Collection[int],
) -> tuple[dict[int, Scores], dict[int, dict[int, str]]]:
    """Return the scores of every layer, and who stays in it whatever they are."""
    keep_count(rule, router)  # the shortest way to a clear error
    missing = sorted(layer for layer in layers_expected if layer not in layers)
    if missing:
        what = f"these statistics have no layer {missing[0]}"
        fix = "measure all layers: halfbyte calibrate without --layers"
        raise UsageError(what, where="the statistics", fix=fix)
    wanted = sorted(layers_expected)
    scores = {layer: layer_scores(layer, layers[layer], domains, rule, router) for layer in wanted}
    experts = {layer: found for layer in wanted if (found := layers[layer].experts) is not None}
    supers = super_experts(experts) if rule.protect else {}
    return scores, {layer: _stays(found, supers.get(layer, ())) for layer, found in scores.items()}


def _stays(scores: Scores, supers: Collection[int]) -> dict[int, str]:
    unobserved = {expert: UNOBSERVED for expert, observed in enumerate(scores.observed) if not observed}
    return dict(sorted({**unobserved, **dict.fromkeys(supers, SUPER)}.items()))


def _chosen(
    layer: int, scores: Scores, stays: Mapping[int, str], count: int, rule: Prune, router: RouterShape
) -> LayerChoice:
    check_room(layer, stays, count, router)
    kept = best(scores.blended, count, router, stays)
    if rule.select == "max_min":
        shares = best_shares(scores.by_domain, count, router)
        kept = max_min(shares, count, router, stays, kept).kept
    observed = zip(scores.blended, scores.observed, strict=True)
    return LayerChoice(kept, tuple(float(score) if seen else None for score, seen in observed), dict(stays))


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
        for layer, found in scores.items():
            coverage["layers"][str(layer)]["bound"] = least_bound(found.by_domain, len(kept[layer]), router)
    return PrunePlan(
        router=router,
        layers=dict(sorted(chosen.items())),
        rule=rule,
        coverage=coverage,
        non_uniform=len({len(one) for one in kept.values()}) > 1,
    )
