"""Experts section: heat maps of calibration tokens, saliency and kept experts, by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats
from halfbyte.calibrate.store import read_stats
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.errors import HalfbyteError, UsageError
from halfbyte.evidence.coverage import Coverage
from halfbyte.evidence.folder import Evidence, not_produced
from halfbyte.evidence.plan import PruneSummary
from halfbyte.plan.prune_plan import PrunePlan, read_prune_plan
from halfbyte.publish.report.blocks import Block, Figure, Fold, Missing, Say, Section, Table, missing
from halfbyte.publish.report.heat import LEVELS, picture, shades

_STATS = "stats"
_CALIBRATE = "halfbyte quantize SRC OUT -r RECIPE (with calibration)"
Grid = NDArray[np.float64]


def experts(evidence: Evidence) -> Section:
    """Return the heat maps, each with a table."""
    blocks: list[Block] = []
    stats, why = _stats(evidence)
    if stats:
        blocks += _tokens(stats)
    elif not_produced(evidence, Coverage):
        blocks.append(Say("Not calibrated: the recipe uses no calibration data."))
    else:
        blocks.append(Missing("calibration tokens by expert", why, _CALIBRATE))
    plan, why_no_plan = _plan(evidence)
    scores = _scores(plan, stats)
    if scores is not None:
        by, grid, numbers = scores
        drawn = picture(shades(grid), f"saliency of {grid.shape[1]} experts in {grid.shape[0]} layers")
        about = f"Saliency ({by}) relative to the layer's maximum. {_legend(numbers)} Orange: unknown."
        blocks.append(Figure(about, drawn))
    elif not not_produced(evidence, Coverage):
        blocks.append(Missing("saliency by expert", "no statistics or scores found", _CALIBRATE))
    if plan:
        blocks += _kept(plan)
    elif not_produced(evidence, PruneSummary):
        blocks.append(Say("Not pruned: the recipe keeps every expert."))
    else:
        blocks.append(why_no_plan)
    return Section("experts", "Experts", blocks)


def _plan(evidence: Evidence) -> tuple[PrunePlan | None, Missing]:
    what = "kept and dropped experts"
    if evidence.get(PruneSummary) is None:
        return None, missing(evidence, PruneSummary, what)
    try:
        return read_prune_plan(evidence.path(PruneSummary)), Missing(what, "", "")
    except UsageError as error:
        return None, Missing(what, error.what, "restore the file prune-plan.json")


def _stats(evidence: Evidence) -> tuple[dict[int, ExpertStats], str]:
    try:
        _, layers = read_stats(evidence.out / FOLDER / _STATS)
    except (HalfbyteError, OSError) as error:
        return {}, error.what if isinstance(error, HalfbyteError) else "cannot read the statistics"
    return {
        layer: stats.experts for layer, stats in layers.items() if stats.experts is not None
    }, "no layer has experts"


def _grid(rows: Mapping[int, Any]) -> tuple[Grid, list[int]]:
    """Return rows of any length as [layers, experts], padded with NaN."""
    numbers = sorted(rows)
    grid = np.full((len(numbers), max(len(rows[number]) for number in numbers)), np.nan)
    for at, number in enumerate(numbers):
        grid[at, : len(rows[number])] = rows[number]
    return grid, numbers


def _legend(numbers: list[int]) -> str:
    return f"Rows are layers ({numbers[0]} at the top to {numbers[-1]}), columns are experts; darker is more."


def _tokens(stats: Mapping[int, ExpertStats]) -> list[Block]:
    counts = {layer: experts.count.sum(axis=1).astype(np.float64) for layer, experts in stats.items()}
    grid, numbers = _grid(counts)
    drawn = picture(shades(np.log1p(grid)), f"calibration tokens of {grid.shape[1]} experts in {grid.shape[0]} layers")
    rows = [
        [
            str(layer),
            f"{values.min():,.0f}",
            f"{np.median(values):,.0f}",
            f"{values.max():,.0f}",
            f"{(values == 0).sum()}",
        ]
        for layer, values in sorted(counts.items())
    ]
    columns = ("layer", "fewest", "median", "most", "experts without tokens")
    table = Table("Calibration tokens by layer", columns, rows, frozenset(columns[1:]))
    return [
        Figure(f"Calibration tokens per expert, on a log scale. {_legend(numbers)}", drawn),
        Fold("Table: calibration tokens by layer", [table]),
    ]


def _scores(plan: PrunePlan | None, stats: Mapping[int, ExpertStats]) -> tuple[str, Grid, list[int]] | None:
    """Return the saliency criterion, and each score relative to its layer's maximum."""
    if plan and plan.layers and all(choice.scores for choice in plan.layers.values()):
        by = f"{plan.rule.method}, from the prune plan" if plan.rule else "from the prune plan"
        rows = {layer: [np.nan if s is None else s for s in choice.scores] for layer, choice in plan.layers.items()}
    elif stats:
        by = "mean router weight x output norm (REAP), from the statistics"
        rows = {layer: _mean(experts) for layer, experts in stats.items()}
    else:
        return None
    grid, numbers = _grid(rows)
    most = np.nanmax(np.where(np.isfinite(grid), grid, 0.0), axis=1, keepdims=True)
    return by, grid / np.where(most > 0, most, 1.0), numbers


def _mean(stats: ExpertStats) -> Grid:
    count, total = stats.count.sum(axis=1), stats.sums["gn"].sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _kept(plan: PrunePlan) -> list[Block]:
    kept = plan.kept()
    rows = {layer: np.isin(np.arange(plan.experts), experts).astype(np.float64) for layer, experts in kept.items()}
    grid, numbers = _grid(rows)
    pixels = (grid * (LEVELS - 1)).astype(np.uint8)
    drawn = picture(pixels, f"kept and dropped of {plan.experts} experts in {len(kept)} layers")
    counted = [[str(layer), str(len(experts)), str(plan.experts - len(experts))] for layer, experts in kept.items()]
    columns = ("layer", "kept", "dropped")
    legend = _legend(numbers).partition(";")[0]
    return [
        Figure(f"{plan.counted()} experts per layer are kept. {legend}; dark: kept, light: dropped.", drawn),
        Fold(
            "Table: kept and dropped experts by layer",
            [Table("Kept and dropped experts", columns, counted, frozenset(columns[1:]))],
        ),
    ]
