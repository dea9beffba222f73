"""Decide which experts of a checkpoint to keep: by a plan, by statistics, or layer by layer during measurement.

`build_plan.py` has the rules. This module applies them to a checkpoint and rejects mismatched inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Statistics, loaded_statistics
from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.identity import config_name, identity, short_name
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.reader import CachingReader
from halfbyte.errors import UsageError
from halfbyte.families.config_agreement import refuse_other_config
from halfbyte.families.model import Model, describe
from halfbyte.plan.manifest import Plan, make_plan, refuse_nothing_to_prune
from halfbyte.plan.prune_plan import CHOSEN_ON, PLAN, LayerChoice, PrunePlan, check_layers
from halfbyte.plan.prune_record import read_record
from halfbyte.plan.pruned import Kept, RouterShape, moe_layers, refuse_wrong_choice, router_shape
from halfbyte.plan.rules import Job
from halfbyte.prune.build_plan import choose, choose_layer, gather, spread, with_coverage
from halfbyte.prune.selection import Budgets
from halfbyte.recipe.decisions import Prune, Recipe


def describe_source(checkpoint: Checkpoint, weights: Mapping[str, str]) -> dict[str, str]:
    """Return short hashes that identify a checkpoint's weights and config."""
    return {"weights": short_name(weights), "config": config_name(checkpoint.config)}


def applied_to(plan: PrunePlan, checkpoint: Checkpoint) -> PrunePlan:
    """Return a plan that records the weights it is applied to and, if they differ, those it was chosen on.

    The latter may be a checkpoint before quantization.
    """
    here = describe_source(checkpoint, identity(checkpoint))
    if plan.source.get("weights") == here["weights"]:
        return plan
    origin = plan.source.get(CHOSEN_ON, plan.source)
    differs = origin.get("weights") not in (None, here["weights"])
    return replace(plan, source={**here, **({CHOSEN_ON: dict(origin)} if differs else {})})


def refuse_pruned_source(checkpoint: Checkpoint) -> None:
    """Raise if the source is already pruned: its expert numbers would not match statistics of the full model."""
    record = read_record(checkpoint.root)
    if record is not None:
        what = f"the source is already pruned: it keeps {record.plan.counted()} experts per layer"
        fix = "prune the original checkpoint instead, and keep fewer experts"
        raise UsageError(what, where=str(checkpoint.root / FOLDER / PLAN), fix=fix)


def refuse_unclear(run_plan: Plan, plan: PrunePlan | None, *, has_statistics: bool) -> None:
    """Raise, before weights are read, if neither a plan nor statistics determine the kept experts."""
    assert run_plan.recipe.prune is not None
    if plan is not None:
        refuse_other_source(plan, run_plan)
    elif not has_statistics and run_plan.recipe.prune.statistics == "file":
        fix = "pass --stats STATS, created by halfbyte calibrate SRC -r RECIPE -o STATS"
        raise UsageError(f"recipe '{run_plan.recipe.name}' needs existing statistics", where="--stats", fix=fix)


def chosen(run_plan: Plan, measured: Statistics | None, weights: Mapping[str, str]) -> PrunePlan | None:
    """Return the plan chosen from a statistics file; None if statistics are measured during the run."""
    if measured is None or measured.file is None:
        return None
    return by_statistics(run_plan, weights, measured.about, _layers(run_plan, measured))


def _layers(run_plan: Plan, measured: Statistics) -> dict[int, LayerStats]:
    """Return the statistics of all layers from a file."""
    with CachingReader(run_plan.checkpoint, {}) as reader:  # required by the signature, not used
        return dict(measured.layers(reader, None, lambda _: None, ()))


def spread_plan(run_plan: Plan, stats: Path) -> tuple[PrunePlan, Budgets]:
    """Choose experts with non-uniform counts per layer; return the plan and its budgets."""
    assert run_plan.recipe.prune is not None
    refuse_nothing_to_prune(run_plan)
    weights = identity(run_plan.checkpoint)
    measured = _statistics(run_plan, stats, weights)
    wanted = moe_layers(run_plan.model, run_plan.layers)
    router = router_shape(run_plan.model, run_plan.checkpoint.config)
    layers = {layer: layer_stats for layer, layer_stats in _layers(run_plan, measured).items() if layer in wanted}
    arguments = (layers, list(measured.about["domains"]), run_plan.recipe.prune, router)
    budgets = spread(*arguments, layers_expected=wanted)
    plan = choose(*arguments, layers_expected=wanted, counts=budgets.counts)
    return replace(plan, **_origin(run_plan, weights, measured.about)), budgets


def with_statistics(plan: PrunePlan, run_plan: Plan, stats: Path) -> PrunePlan:
    """Return a plan with its coverage by statistics of this checkpoint; the plan may come from any source."""
    measured = _statistics(run_plan, stats, identity(run_plan.checkpoint))
    selected = of_layers(plan, run_plan.layers)
    rule = plan.rule or Prune(method="reap", statistics="file", keep=max(plan.counts().values()))
    covered = with_coverage(selected, _layers(run_plan, measured), list(measured.about["domains"]), rule)
    coverage = dict(covered.coverage)
    if plan.statistics and plan.statistics != measured.about:  # scores and coverage come from different statistics
        coverage["statistics"] = dict(measured.about)
    return replace(plan, coverage=coverage, statistics=plan.statistics or dict(measured.about))


def _statistics(run_plan: Plan, stats: Path, weights: Mapping[str, str]) -> Statistics:
    layers = run_plan.layers or run_plan.model.layers
    return loaded_statistics(stats, run_plan.checkpoint, weights, layers, choosing=True)


def _origin(run_plan: Plan, weights: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    source: dict[str, Any] = {**describe_source(run_plan.checkpoint, weights)}
    if about["source"] != source["weights"]:  # measured before quantization
        source[CHOSEN_ON] = {"weights": about["source"], "config": about["config"]}
    return {"source": source, "statistics": dict(about)}


def by_statistics(
    run_plan: Plan, weights: Mapping[str, str], about: Mapping[str, Any], layers: Mapping[int, LayerStats]
) -> PrunePlan:
    """Choose the experts of every layer by statistics measured on this checkpoint."""
    assert run_plan.recipe.prune is not None
    wanted = moe_layers(run_plan.model, run_plan.layers)
    selected = {layer: stats for layer, stats in layers.items() if layer in wanted}
    router = router_shape(run_plan.model, run_plan.checkpoint.config)
    plan = choose(selected, list(about["domains"]), run_plan.recipe.prune, router, layers_expected=wanted)
    return replace(plan, **_origin(run_plan, weights, about))


def open_model(source: Path | Checkpoint) -> tuple[Checkpoint, Model]:
    """Open the checkpoint to prune."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    return checkpoint, describe(checkpoint)


def base_plan(checkpoint: Checkpoint, model: Model, recipe: Recipe, layers: int | None) -> Plan:
    """Build the run's plan without an expert selection; raise if the checkpoint cannot be pruned."""
    refuse_pruned_source(checkpoint)
    refuse_other_config(checkpoint, model)
    return make_plan(checkpoint, model, recipe, layers=layers)


def decided(
    checkpoint: Checkpoint,
    model: Model,
    recipe: Recipe,
    stats: Path | None,
    plan: PrunePlan | None,
    layers: int | None,
) -> tuple[Plan, PrunePlan]:
    """Build the full plan of a run, including the kept experts, without writing anything."""
    run_plan = base_plan(checkpoint, model, recipe, layers)
    if plan is None:
        refuse_nothing_to_prune(run_plan)
    weights = identity(checkpoint)
    if plan is not None:
        refuse_other_source(plan, run_plan)
        selection = plan
    else:
        assert stats is not None
        selection = chosen(run_plan, _statistics(run_plan, stats, weights), weights)
        assert selection is not None
    return make_plan(checkpoint, model, recipe, layers=layers, kept=kept_of(selection, run_plan.layers)), selection


def refuse_other_source(plan: PrunePlan, run_plan: Plan) -> None:
    """Raise if a plan is for another model, or for this model before it was pruned."""
    where = str(run_plan.checkpoint.root)
    if plan.experts != run_plan.model.experts:
        what = f"the plan is for {plan.experts} experts per layer, but the source has {run_plan.model.experts}"
        fix = "pass the checkpoint the plan was created for: this one is different or already pruned"
        raise UsageError(what, where=where, fix=fix)
    check_layers(plan.layers, plan.router, non_uniform=plan.non_uniform, layers_expected=None, where=where)
    kept = kept_of(plan, run_plan.layers)
    refuse_wrong_choice(run_plan.model, run_plan.checkpoint.config, kept, run_plan.layers, where)


@dataclass(slots=True)
class LayerByLayer:
    """Choose the experts of each layer once it is measured; deterministic, so that a killed run can resume."""

    run_plan: Plan  # without an expert selection
    weights: Mapping[str, str]
    about: Mapping[str, Any]
    choices: dict[int, LayerChoice] = field(default_factory=dict[int, LayerChoice])
    measured: dict[int, LayerStats] = field(default_factory=dict[int, LayerStats])

    def jobs(self, layer: int, stats: LayerStats, pending: Iterable[Job]) -> list[Job]:
        """Return the pending jobs of a layer, restricted to the kept experts."""
        if stats.experts is None:
            return list(pending)
        choice = choose_layer(layer, stats, *self._rule())
        self.choices[layer], self.measured[layer] = choice, replace(stats, hessians=None)  # drop the large Hessian
        chosen = self.run_plan.chosen_jobs(layer, choice.kept)
        return [chosen[job.name] for job in pending]

    def plan(self) -> PrunePlan:
        """Return the plan of all layers chosen so far."""
        plan = gather(self.choices, self.measured, *self._rule())
        return replace(plan, **_origin(self.run_plan, self.weights, self.about))

    def _rule(self) -> tuple[list[str], Prune, RouterShape]:
        """Return the inputs of a choice besides the statistics: domains, rule and router."""
        assert self.run_plan.recipe.prune is not None
        router = router_shape(self.run_plan.model, self.run_plan.checkpoint.config)
        return list(self.about["domains"]), self.run_plan.recipe.prune, router


def kept_of(plan: PrunePlan, layers: int | None) -> Kept:
    """Return the kept experts of the layers to be written."""
    return of_layers(plan, layers).kept()


def of_layers(plan: PrunePlan, layers: int | None) -> PrunePlan:
    """Return the part of a plan for the layers to be written."""
    return replace(plan, layers={at: choice for at, choice in plan.layers.items() if layers is None or at < layers})
