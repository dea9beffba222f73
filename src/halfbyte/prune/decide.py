"""Which experts of a checkpoint stay: by a plan, by statistics of an earlier run, or layer by layer as it is measured.

The rules themselves are in `choose.py`; here they meet a checkpoint, and what does not belong together is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER
from halfbyte.models.model import Model
from halfbyte.plan.manifest import Plan
from halfbyte.plan.pruned import PRUNE_PLAN, Kept, moe_layers, refuse_wrong_choice
from halfbyte.plan.rules import Job
from halfbyte.prune.choose import RouterShape, choose, choose_layer
from halfbyte.prune.plan_file import LayerChoice, PrunePlan
from halfbyte.source.checkpoint import Checkpoint
from halfbyte.source.identity import config_name, short_name
from halfbyte.write import write_whole


def router_shape(model: Model, config: Mapping[str, Any]) -> RouterShape:
    """Return how the model's routers choose."""
    groups = model.architecture.number(config, "groups") or 1
    chosen = model.architecture.text(config).get("topk_group")
    return RouterShape(model.experts, model.active_experts, groups, chosen if type(chosen) is int else 1)


def describe_source(checkpoint: Checkpoint, weights: Mapping[str, str]) -> dict[str, str]:
    """Return what tells this checkpoint from others."""
    return {"weights": short_name(weights), "config": config_name(checkpoint.config)}


def refuse_pruned_source(checkpoint: Checkpoint) -> None:
    """Refuse what was pruned before: numbers of experts would mean others than the statistics of the whole model."""
    path = checkpoint.root / FOLDER / PRUNE_PLAN
    if path.exists():
        fix = "prune the checkpoint that it was made from, and keep fewer experts"
        raise UsageError("the source is pruned already", where=str(path), fix=fix)


def by_statistics(
    made: Plan, weights: Mapping[str, str], about: Mapping[str, Any], layers: Mapping[int, LayerStats]
) -> PrunePlan:
    """Choose the experts of every layer by statistics that were measured on this checkpoint."""
    assert made.recipe.prune is not None
    wanted = moe_layers(made.model, made.layers)
    found = {layer: stats for layer, stats in layers.items() if layer in wanted}
    router = router_shape(made.model, made.checkpoint.config)
    plan = choose(found, list(about["domains"]), made.recipe.prune, router, layers_expected=wanted)
    return replace(plan, source=describe_source(made.checkpoint, weights), statistics=dict(about))


def refuse_other_source(plan: PrunePlan, made: Plan) -> None:
    """Refuse a plan for another model, or for this one before it was pruned."""
    where = str(made.checkpoint.root)
    if plan.experts != made.model.experts:
        what = f"the plan is for {plan.experts} experts in a layer, the source has {made.model.experts}"
        fix = "give the checkpoint that the plan was made for: this one is another, or is pruned already"
        raise UsageError(what, where=where, fix=fix)
    refuse_wrong_choice(made.model, made.checkpoint.config, plan.kept(), made.layers, where)


@dataclass(slots=True)
class LayerByLayer:
    """Chooses the experts of a layer when it has been measured; the same again wherever a killed run goes on."""

    made: Plan  # which stands for any choice until now
    weights: Mapping[str, str]
    about: Mapping[str, Any]
    choices: dict[int, LayerChoice] = field(default_factory=dict[int, LayerChoice])

    def jobs(self, layer: int, stats: LayerStats, pending: Iterable[Job]) -> list[Job]:
        """Return what is to be done in a layer: pending jobs, with the experts that stay."""
        if stats.experts is None:
            return list(pending)
        model, rule = self.made.model, self.made.recipe.prune
        assert rule is not None
        router = router_shape(model, self.made.checkpoint.config)
        choice = choose_layer(layer, stats, list(self.about["domains"]), rule, router)
        assert len(choice.kept) == self.made.experts
        self.choices[layer] = choice
        chosen = self.made.chosen_jobs(layer, choice.kept)
        return [chosen[job.name] for job in pending]

    def plan(self) -> PrunePlan:
        """Return what was chosen."""
        rule = self.made.recipe.prune
        assert rule is not None
        return PrunePlan(
            experts=self.made.model.experts,
            layers=dict(self.choices),
            rule=rule,
            source=describe_source(self.made.checkpoint, self.weights),
            statistics=dict(self.about),
            coverage={},
        )


def write_prune_plan(plan: PrunePlan, path: Path) -> None:
    """Write a plan whole or not at all."""
    write_whole(path, (json.dumps(plan.as_dict(), indent=1) + "\n").encode())


def kept_of(plan: PrunePlan, layers: int | None) -> Kept:
    """Return the experts that stay in the layers that are written."""
    return {layer: experts for layer, experts in plan.kept().items() if layers is None or layer < layers}
