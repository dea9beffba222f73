"""Experts that were dropped come back, best first: a build that lost too much grows without being chosen anew."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from halfbyte.errors import UsageError
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.prune.ranking import ranking
from halfbyte.prune.router import RouterShape

RESTORED = "restored"
Where = Literal["each", "most"]


def restore(plan: PrunePlan, more: int, *, where: Where = "each") -> PrunePlan:
    """Return a plan that keeps `more` experts a layer: as many in each, or as many in all where they help most.

    The best of the dropped come back by the plan's own scores; of equal ones the lower number. "most" compares scores
    relative to the sum of their layer's, as `budgets` does, and its layers then keep different numbers. What the kept
    experts cover is not known without the statistics: the new plan says nothing of it.
    """
    if more < 1:
        raise UsageError(f"{more} experts cannot come back", where="--restore", fix="give a number, at least 1")
    if more % plan.router.n_group:
        what = f"{more} experts do not divide into {plan.router.n_group} groups"
        raise UsageError(what, where="--restore", fix=f"restore a multiple of {plan.router.n_group}")
    rows = {layer: _dropped_rows(layer, choice, plan.router) for layer, choice in sorted(plan.layers.items())}
    blocks = more // plan.router.n_group
    each = dict.fromkeys(rows, blocks) if where == "each" else _where_most(plan, rows, blocks * len(rows))
    for layer, number in each.items():
        if number > len(rows[layer]):
            there = len(rows[layer]) * plan.router.n_group
            what = f"{more} experts cannot come back, only {there} were dropped"
            raise UsageError(what, where=f"layer {layer}", fix=f"restore {there} or fewer")
    layers = {layer: _with(choice, rows[layer][: each[layer]]) for layer, choice in plan.layers.items()}
    differ = len({len(choice.kept) for choice in layers.values()}) > 1
    keep = sum(len(choice.kept) for choice in layers.values()) // len(layers)  # of layers that differ: the mean
    rule = None if plan.rule is None else replace(plan.rule, keep=keep, drop=None)
    return replace(plan, layers=layers, rule=rule, coverage={}, non_uniform=plan.non_uniform or differ)


def _dropped_rows(layer: int, choice: LayerChoice, router: RouterShape) -> list[tuple[int, ...]]:
    """Return the dropped experts, best first, one of each group in a row."""
    if not choice.scores:
        what = "this plan has no scores: which of the dropped are the best is not known"
        raise UsageError(what, where=f"layer {layer}", fix="give a plan that was chosen from statistics")
    scores = np.array([0.0 if score is None else score for score in choice.scores])
    order = ranking(scores, router, choice.kept)[len(choice.kept) // router.n_group :]
    return [tuple(int(expert) for expert in row) for row in order]


def _where_most(plan: PrunePlan, rows: Mapping[int, list[tuple[int, ...]]], blocks: int) -> dict[int, int]:
    gains: list[tuple[float, int, int]] = []
    for layer, found in rows.items():
        scores = plan.layers[layer].scores
        whole = math.fsum(score or 0.0 for score in scores) or 1.0
        gains += [(-math.fsum(scores[one] or 0.0 for one in row) / whole, layer, at) for at, row in enumerate(found)]
    if blocks > len(gains):
        there = len(gains) * plan.router.n_group
        what = f"{blocks * plan.router.n_group} experts cannot come back, only {there} were dropped in all layers"
        raise UsageError(what, where="--restore", fix="restore fewer")
    each = dict.fromkeys(rows, 0)
    for _, layer, _ in sorted(gains)[:blocks]:
        each[layer] += 1
    return each


def _with(choice: LayerChoice, rows: list[tuple[int, ...]]) -> LayerChoice:
    back = [expert for row in rows for expert in row]
    reasons = {**choice.reasons, **dict.fromkeys(back, RESTORED)}
    return LayerChoice(tuple(sorted((*choice.kept, *back))), choice.scores, dict(sorted(reasons.items())))
