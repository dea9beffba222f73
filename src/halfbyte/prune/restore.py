"""Restore the best dropped experts of a plan, without choosing all experts again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from halfbyte.errors import UsageError
from halfbyte.plan.prune_plan import RESTORED, LayerChoice, PrunePlan
from halfbyte.plan.pruned_router import RouterShape
from halfbyte.prune.ranking import ranking

Where = Literal["each", "most"]


def restore(plan: PrunePlan, more: int, *, where: Where = "each") -> PrunePlan:
    """Return a plan that keeps `more` experts per layer: in each layer, or on average where they help most.

    Dropped experts are restored by the plan's own scores; of equal ones the lower number. "most" normalizes the scores
    by their layer's sum, as in `budgets`, and gives layers different numbers. The new plan has no coverage, which would
    need the statistics.
    """
    if more < 1:
        raise UsageError(f"cannot restore {more} experts", where="--restore", fix="pass a number >= 1")
    if more % plan.router.n_group:
        what = f"{more} experts cannot be split into {plan.router.n_group} groups"
        raise UsageError(what, where="--restore", fix=f"restore a multiple of {plan.router.n_group}")
    rows = {layer: _dropped_rows(layer, choice, plan.router) for layer, choice in sorted(plan.layers.items())}
    blocks = more // plan.router.n_group
    each = dict.fromkeys(rows, blocks) if where == "each" else _where_most(plan, rows, blocks * len(rows))
    for layer, number in each.items():
        if number > len(rows[layer]):
            dropped = len(rows[layer]) * plan.router.n_group
            what = f"cannot restore {more} experts, only {dropped} were dropped"
            raise UsageError(what, where=f"layer {layer}", fix=f"restore {dropped} or fewer")
    layers = {layer: _with(choice, rows[layer][: each[layer]]) for layer, choice in plan.layers.items()}
    non_uniform = len({len(choice.kept) for choice in layers.values()}) > 1
    keep = sum(len(choice.kept) for choice in layers.values()) // len(layers)  # the mean if layers differ
    rule = None if plan.rule is None else replace(plan.rule, keep=keep, drop=None)
    return replace(plan, layers=layers, rule=rule, coverage={}, non_uniform=plan.non_uniform or non_uniform)


def _dropped_rows(layer: int, choice: LayerChoice, router: RouterShape) -> list[tuple[int, ...]]:
    """Return the dropped experts, best first, with one expert of each group per row."""
    if not choice.scores:
        what = "this plan has no scores to rank the dropped experts by"
        raise UsageError(what, where=f"layer {layer}", fix="pass a plan chosen from statistics")
    scores = np.array([0.0 if score is None else score for score in choice.scores])
    order = ranking(scores, router, choice.kept)[len(choice.kept) // router.n_group :]
    return [tuple(int(expert) for expert in row) for row in order]


def _where_most(plan: PrunePlan, rows: Mapping[int, list[tuple[int, ...]]], blocks: int) -> dict[int, int]:
    gains: list[tuple[float, int, int]] = []
    for layer, dropped_rows in rows.items():
        scores = plan.layers[layer].scores
        norm = math.fsum(score or 0.0 for score in scores) or 1.0
        gains += [(-math.fsum(scores[e] or 0.0 for e in row) / norm, layer, at) for at, row in enumerate(dropped_rows)]
    if blocks > len(gains):
        dropped = len(gains) * plan.router.n_group
        what = f"cannot restore {blocks * plan.router.n_group} experts, only {dropped} were dropped in all layers"
        raise UsageError(what, where="--restore", fix="restore fewer")
    each = dict.fromkeys(rows, 0)
    for _, layer, _ in sorted(gains)[:blocks]:
        each[layer] += 1
    return each


def _with(choice: LayerChoice, rows: list[tuple[int, ...]]) -> LayerChoice:
    restored = [expert for row in rows for expert in row]
    reasons = {**choice.reasons, **dict.fromkeys(restored, RESTORED)}
    return LayerChoice(tuple(sorted((*choice.kept, *restored))), choice.scores, dict(sorted(reasons.items())))
