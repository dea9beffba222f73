"""Which experts of a checkpoint stay: by a plan, by statistics of an earlier run, or layer by layer as it is measured.

The rules themselves are in `choose.py`; here they meet a checkpoint, and what does not belong together is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from halfbyte.calibrate.given import Statistics, given
from halfbyte.calibrate.stats import LayerStats
from halfbyte.errors import UsageError
from halfbyte.folders import FOLDER
from halfbyte.models.declared import refuse_other_config
from halfbyte.models.model import Model, describe
from halfbyte.plan.manifest import Plan, make_plan, refuse_nothing_to_prune
from halfbyte.plan.pruned import Kept, moe_layers, refuse_wrong_choice, router_shape
from halfbyte.plan.rules import Job
from halfbyte.prune.budgets import Budgets
from halfbyte.prune.choose import choose, choose_layer, gather, spread, with_coverage
from halfbyte.prune.plan_checks import check_layers
from halfbyte.prune.plan_file import CHOSEN_ON, PLAN, LayerChoice, PrunePlan
from halfbyte.prune.record import read_record
from halfbyte.prune.router import RouterShape
from halfbyte.recipe.decisions import Prune, Recipe
from halfbyte.source.checkpoint import Checkpoint, open_checkpoint
from halfbyte.source.hold import HoldingReader
from halfbyte.source.identity import config_name, identity, short_name


def describe_source(checkpoint: Checkpoint, weights: Mapping[str, str]) -> dict[str, str]:
    """Return what tells this checkpoint from others."""
    return {"weights": short_name(weights), "config": config_name(checkpoint.config)}


def applied_to(plan: PrunePlan, checkpoint: Checkpoint) -> PrunePlan:
    """Return a plan that names the weights it is applied to, and others that it was chosen on as such.

    Those may be of a checkpoint before it was quantized.
    """
    here = describe_source(checkpoint, identity(checkpoint))
    if plan.source.get("weights") == here["weights"]:
        return plan
    first = plan.source.get(CHOSEN_ON, plan.source)
    other = first.get("weights") not in (None, here["weights"])
    return replace(plan, source={**here, **({CHOSEN_ON: dict(first)} if other else {})})


def refuse_pruned_source(checkpoint: Checkpoint) -> None:
    """Refuse what was pruned before: numbers of experts would mean others than the statistics of the whole model."""
    record = read_record(checkpoint.root)
    if record is not None:
        what = f"the source is pruned already: {record.plan.counted()} experts stay in each layer"
        fix = "prune the checkpoint that it was made from, and keep fewer experts"
        raise UsageError(what, where=str(checkpoint.root / FOLDER / PLAN), fix=fix)


def not_on_a_gpu() -> UsageError:
    """Return what is said of a recipe that prunes, and of a GPU."""
    fix = "use --device cpu; or measure (halfbyte calibrate) and run halfbyte prune SRC OUT --stats STATS"
    return UsageError("pruning is not built into the pass on the GPU yet", where="--device", fix=fix)


def refuse_unclear(made: Plan, plan: PrunePlan | None, *, has_statistics: bool, on_cpu: bool) -> None:
    """Refuse, before weights are read, what says in no way which experts stay."""
    if not on_cpu:
        raise not_on_a_gpu()
    assert made.recipe.prune is not None
    if plan is not None:
        refuse_other_source(plan, made)
    elif not has_statistics and made.recipe.prune.statistics == "given":
        fix = "give --stats STATS: halfbyte calibrate SRC -r RECIPE -o STATS makes them"
        raise UsageError(f"recipe '{made.recipe.name}' prunes by statistics that are given", where="--stats", fix=fix)


def chosen(made: Plan, measured: Statistics | None, weights: Mapping[str, str]) -> PrunePlan | None:
    """Return which experts stay, where statistics of a file say so; None where they are measured on the way."""
    if measured is None or measured.file is None:
        return None
    return by_statistics(made, weights, measured.about, _layers(made, measured))


def _layers(made: Plan, measured: Statistics) -> dict[int, LayerStats]:
    """Return the statistics of a file, of all layers at once."""
    with HoldingReader(made.checkpoint, {}) as reader:  # which they do not read from
        return dict(measured.layers(reader, None, lambda _: None, ()))


def spread_plan(made: Plan, stats: Path) -> tuple[PrunePlan, Budgets]:
    """Choose as many experts in all, but in each layer as many as it needs; and say what that buys."""
    assert made.recipe.prune is not None
    refuse_nothing_to_prune(made)
    weights = identity(made.checkpoint)
    measured = _given(made, stats, weights)
    wanted, router = moe_layers(made.model, made.layers), router_shape(made.model, made.checkpoint.config)
    found = {layer: one for layer, one in _layers(made, measured).items() if layer in wanted}
    by = (found, list(measured.about["domains"]), made.recipe.prune, router)
    budgets = spread(*by, layers_expected=wanted)
    plan = choose(*by, layers_expected=wanted, counts=budgets.counts)
    return replace(plan, **_origin(made, weights, measured.about)), budgets


def with_statistics(plan: PrunePlan, made: Plan, stats: Path) -> PrunePlan:
    """Return a plan with what it covers, by statistics of this checkpoint, whoever made the plan."""
    measured = _given(made, stats, identity(made.checkpoint))
    written = of_layers(plan, made.layers)
    rule = plan.rule or Prune(method="reap", statistics="given", keep=max(plan.counts().values()))
    found = with_coverage(written, _layers(made, measured), list(measured.about["domains"]), rule)
    coverage = dict(found.coverage)
    if plan.statistics and plan.statistics != measured.about:  # scores are of those, coverage is of these
        coverage["statistics"] = dict(measured.about)
    return replace(plan, coverage=coverage, statistics=plan.statistics or dict(measured.about))


def _given(made: Plan, stats: Path, weights: Mapping[str, str]) -> Statistics:
    return given(stats, made.checkpoint, weights, made.layers or made.model.layers, choosing=True)


def _origin(made: Plan, weights: Mapping[str, str], about: Mapping[str, Any]) -> dict[str, Any]:
    source: dict[str, Any] = {**describe_source(made.checkpoint, weights)}
    if about["source"] != source["weights"]:  # those that it was quantized from
        source[CHOSEN_ON] = {"weights": about["source"], "config": about["config"]}
    return {"source": source, "statistics": dict(about)}


def by_statistics(
    made: Plan, weights: Mapping[str, str], about: Mapping[str, Any], layers: Mapping[int, LayerStats]
) -> PrunePlan:
    """Choose the experts of every layer by statistics that were measured on this checkpoint."""
    assert made.recipe.prune is not None
    wanted = moe_layers(made.model, made.layers)
    found = {layer: stats for layer, stats in layers.items() if layer in wanted}
    router = router_shape(made.model, made.checkpoint.config)
    plan = choose(found, list(about["domains"]), made.recipe.prune, router, layers_expected=wanted)
    return replace(plan, **_origin(made, weights, about))


def open_model(source: Path | Checkpoint) -> tuple[Checkpoint, Model]:
    """Open what is to be pruned."""
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    return checkpoint, describe(checkpoint)


def undecided(checkpoint: Checkpoint, model: Model, recipe: Recipe, layers: int | None) -> Plan:
    """Decide everything but which experts stay; refuse what cannot be pruned."""
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
    """Decide everything that a run would do, with the experts that stay, and write nothing."""
    made = undecided(checkpoint, model, recipe, layers)
    if plan is None:
        refuse_nothing_to_prune(made)
    weights = identity(checkpoint)
    if plan is not None:
        refuse_other_source(plan, made)
        found = plan
    else:
        assert stats is not None
        found = chosen(made, _given(made, stats, weights), weights)
        assert found is not None
    return make_plan(checkpoint, model, recipe, layers=layers, kept=kept_of(found, made.layers)), found


def refuse_other_source(plan: PrunePlan, made: Plan) -> None:
    """Refuse a plan for another model, or for this one before it was pruned."""
    where = str(made.checkpoint.root)
    if plan.experts != made.model.experts:
        what = f"the plan is for {plan.experts} experts in a layer, the source has {made.model.experts}"
        fix = "give the checkpoint that the plan was made for: this one is another, or is pruned already"
        raise UsageError(what, where=where, fix=fix)
    check_layers(plan.layers, plan.router, non_uniform=plan.non_uniform, layers_expected=None, where=where)
    refuse_wrong_choice(made.model, made.checkpoint.config, kept_of(plan, made.layers), made.layers, where)


@dataclass(slots=True)
class LayerByLayer:
    """Chooses the experts of a layer when it has been measured; the same again wherever a killed run goes on."""

    made: Plan  # which stands for any choice until now
    weights: Mapping[str, str]
    about: Mapping[str, Any]
    choices: dict[int, LayerChoice] = field(default_factory=dict[int, LayerChoice])
    measured: dict[int, LayerStats] = field(default_factory=dict[int, LayerStats])

    def jobs(self, layer: int, stats: LayerStats, pending: Iterable[Job]) -> list[Job]:
        """Return what is to be done in a layer: pending jobs, with the experts that stay."""
        if stats.experts is None:
            return list(pending)
        choice = choose_layer(layer, stats, *self._by())
        self.choices[layer], self.measured[layer] = choice, replace(stats, moments=None)  # which are large
        chosen = self.made.chosen_jobs(layer, choice.kept)
        return [chosen[job.name] for job in pending]

    def plan(self) -> PrunePlan:
        """Return what was chosen."""
        found = gather(self.choices, self.measured, *self._by())
        return replace(found, **_origin(self.made, self.weights, self.about))

    def _by(self) -> tuple[list[str], Prune, RouterShape]:
        """Return what decides besides the statistics."""
        assert self.made.recipe.prune is not None
        router = router_shape(self.made.model, self.made.checkpoint.config)
        return list(self.about["domains"]), self.made.recipe.prune, router


def kept_of(plan: PrunePlan, layers: int | None) -> Kept:
    """Return the experts that stay in the layers that are written."""
    return of_layers(plan, layers).kept()


def of_layers(plan: PrunePlan, layers: int | None) -> PrunePlan:
    """Return what a plan says of the layers that are written."""
    return replace(plan, layers={at: choice for at, choice in plan.layers.items() if layers is None or at < layers})
