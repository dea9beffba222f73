"""Sections on the weights: sizes by role, loss by layer, experts, and block scales."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats
from halfbyte.calibrate.store import read_stats
from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.losses import Loss, losses_of_journal
from halfbyte.engine.pipeline import JOURNAL
from halfbyte.errors import HalfbyteError, UsageError
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.coverage import Coverage
from halfbyte.evidence.folder import Evidence, not_produced
from halfbyte.evidence.plan import PlanSummary, PruneSummary
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import Model
from halfbyte.formats.reference.floats import E4M3_VALUES, bf16_to_f32, e8m0_decode
from halfbyte.plan.prune_plan import PrunePlan, read_prune_plan
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Figure,
    Fold,
    Missing,
    Say,
    Section,
    Table,
    command_for,
    formatted,
    missing,
    percent,
)
from halfbyte.publish.report.charts import LEVELS, Axes, Line, bars, lines, picture, shades
from halfbyte.ui.units import size


def sizes(evidence: Evidence, model: Model | None, why_no_model: str) -> Section:
    """Return the section on sizes."""
    plan = evidence.get(PlanSummary)
    blocks: list[Block] = []
    if plan is not None and plan.roles:
        rows = [[row.role, row.action, size(row.read_nbytes), size(row.write_nbytes)] for row in plan.roles]
        numbers = frozenset({"before", "after"})
        blocks.append(Table("As planned", ("role", "action", "before", "after"), rows, numbers))
    elif plan is not None:
        why = "not in plan.json, which an earlier version wrote"
        blocks.append(Missing("sizes by role before and after", why, command_for(PlanSummary)))
    if model is None:
        blocks.append(Missing("sizes by role", why_no_model, "halfbyte inspect OUT"))
    else:
        by_role: dict[str, list[int]] = {}
        for role, tensor in model.tensors():
            row = by_role.setdefault(role, [0, 0])
            row[0] += 1
            row[1] += tensor.nbytes
        total = sum(nbytes for _, nbytes in by_role.values())
        ordered = sorted(by_role.items(), key=lambda item: -item[1][1])
        rows = [
            [_role_words(role), f"{n:,}", size(nbytes), f"{100 * nbytes / total:.1f}%"] for role, (n, nbytes) in ordered
        ]
        rows.append(["all tensors", f"{sum(n for n, _ in by_role.values()):,}", size(total), "100.0%"])
        names = [_role_words(role).split()[0] for role, _ in ordered]
        values = [nbytes / 1e6 for _, (_, nbytes) in ordered]
        tooltips = [f"{_role_words(role)}: {size(nbytes)}" for role, (_, nbytes) in ordered]
        drawn = bars(Axes("Size by role", "role", "MB"), names, values, tooltips)
        blocks.append(Figure("Size of the output by role, in MB.", drawn))
        numbers = frozenset({"tensors", "size", "share"})
        blocks.append(
            Table("As written (from the safetensors headers)", ("role", "tensors", "size", "share"), rows, numbers)
        )
    if plan is None:
        blocks.append(missing(evidence, PlanSummary, "sizes before"))
    else:
        totals = (("read from the source", plan.read_nbytes), ("written, including headers", plan.write_nbytes))
        rows = [[name, f"{nbytes:,}", size(nbytes)] for name, nbytes in totals]
        blocks.append(Table("Totals", ("total", "bytes", "size"), rows, frozenset({"bytes", "size"})))
    return Section("sizes", "Size", blocks)


def _role_words(role: str) -> str:
    return role.replace("_", " ")


def layers(evidence: Evidence) -> Section:
    """Return the section on layers."""
    return Section("layers", "Layers", [*_weights(evidence), *_hidden(evidence)])


def _weights(evidence: Evidence) -> list[Block]:
    plan = evidence.get(PlanSummary)
    shards = list(plan.shards) if plan else []
    losses = losses_of_journal(Journal(evidence.out / FOLDER / JOURNAL).lines(), shards) if shards else None
    command = command_for(PlanSummary)
    if losses is None:
        return [Missing("SQNR by layer", "not recorded in the journal", command)]
    if not losses:
        return [Missing("SQNR by layer", "nothing was quantized", command)]
    rows = [
        [_layer_name(loss), loss.role.replace("_", " "), f"{loss.linears:,}", _db(loss.sqnr_db), *_worst(loss)]
        for loss in losses
    ]
    columns = ("layer", "role", "linears", "SQNR", "worst", "worst linear")
    table = Table("SQNR of the weights by layer and role", columns, rows, frozenset({"linears", "SQNR", "worst"}))
    by_role: dict[str, list[tuple[float, float, str]]] = {}
    for loss in losses:
        if loss.layer is not None and math.isfinite(loss.sqnr_db):
            tooltip = f"layer {loss.layer}, {loss.role.replace('_', ' ')}: {loss.sqnr_db:.2f} dB"
            by_role.setdefault(loss.role.replace("_", " "), []).append((float(loss.layer), loss.sqnr_db, tooltip))
    blocks: list[Block] = []
    if by_role:
        axes = Axes("SQNR of the weights by layer", "layer", "SQNR (dB)", from_zero=False, least=1.0)
        drawn = lines(axes, [Line(role, points) for role, points in by_role.items()])
        about = "Signal-to-quantization-noise ratio of the weights over all linears of a layer. Higher is better."
        blocks.append(Figure(about, drawn))
    return [*blocks, Fold(f"Table: SQNR of {len(rows)} layers and roles", [table])]


def _layer_name(loss: Loss) -> str:
    return "none" if loss.layer is None else str(loss.layer)


def _db(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else "exact"


def _worst(loss: Loss) -> tuple[str, str]:
    return (_db(loss.worst[1]), loss.worst[0]) if loss.worst else (NOT_MEASURED, "")


def _hidden(evidence: Evidence) -> list[Block]:
    comparison = evidence.get(Comparison)
    if comparison is None:
        return [missing(evidence, Comparison, "hidden-state error by layer")]
    errors = [(row.layer, row.relative_error) for row in comparison.layers]
    added = [(row.layer, row.added_error) for row in comparison.layers if row.added_error is not None]
    about = "Error of the hidden states after each layer, relative to the source."
    drawn = [_error_line("error", errors)]
    rows = [
        [
            str(row.layer),
            formatted(row.relative_error, ".4g"),
            formatted(row.cosine, ".5f"),
            percent(row.routing_agreement),
        ]
        for row in comparison.layers
    ]
    columns = ("layer", "relative error", "cosine similarity", "same expert routing")
    if added:
        about += " Added error: that of one layer alone, on the source's hidden states."
        drawn.append(_error_line("added error", added, " added"))
        rows = [[*row, formatted(layer.added_error, ".4g")] for row, layer in zip(rows, comparison.layers, strict=True)]
        columns = (*columns, "added error")
    return [
        Figure(
            about,
            lines(Axes("Hidden-state error by layer", "layer", "relative error"), drawn),
        ),
        Fold(f"Table: hidden states of {len(rows)} layers",
             [Table("Hidden states by layer", columns, rows, frozenset(columns[1:]))]),
    ]  # fmt: skip


def _error_line(name: str, errors: Sequence[tuple[int, float | None]], unit: str = "") -> Line:
    points = [(float(at), error, f"layer {at}: {error:.4g}{unit}") for at, error in errors if error is not None]
    return Line(name, points)


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


_SCALE = "weight_scale"
_LINEARS = 64  # sampled evenly over the model
_MOST_NBYTES = 1 << 26  # read in total


def scales(checkpoint: Checkpoint | None, model: Model | None, why_no_model: str) -> Section:
    """Return a histogram per format with block scales."""
    if checkpoint is None or model is None:
        return _section([Missing("block scales", why_no_model, "halfbyte inspect OUT")])
    by_format: dict[str, list[StoredLinear]] = {}
    for linear in model.linears.values():
        if _SCALE in linear.parts:
            by_format.setdefault(linear.format, []).append(linear)
    blocks: list[Block] = []
    with Reader(checkpoint) as reader:
        for format, linears in sorted(by_format.items()):
            blocks.append(_histogram(format, linears, reader))
    return _section(
        blocks or [Missing("block scales", "no linear has block scales", "halfbyte quantize SRC OUT -r RECIPE")]
    )


def _section(blocks: list[Block]) -> Section:
    return Section("scales", "Block scales", blocks)


def _histogram(format: str, linears: list[StoredLinear], reader: Reader) -> Block:
    sample = linears[:: max(1, -(-len(linears) // _LINEARS))]
    histogram: Counter[int] = Counter()
    nbytes, read, zeros = 0, 0, 0
    for linear in sample:
        part = linear.parts[_SCALE]
        if nbytes + part.nbytes > _MOST_NBYTES:
            break
        nbytes, read = nbytes + part.nbytes, read + 1
        values = np.abs(_values(reader.tensor(part), part.dtype).reshape(-1))
        good = values[np.isfinite(values) & (values > 0)]
        zeros += int(values.size - good.size)
        powers, counts = np.unique(np.floor(np.log2(good)).astype(np.int64), return_counts=True)
        histogram.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))
    if not histogram:
        return Missing(f"block scales of {format}", "the sample has no positive scales", "halfbyte audit OUT")
    span = range(min(histogram), max(histogram) + 1)
    total = sum(histogram.values())
    shares = [100 * histogram[power] / total for power in span]
    tooltips = [f"2^{power} to 2^{power + 1}: {histogram[power]:,} scales" for power in span]
    axes = Axes(f"Block scales of {format}", "log2 of the scale", "% of scales")
    about = (
        f"{format}: {total:,} positive scales from {read:,} of {len(linears):,} linears, sampled evenly"
        f" ({nbytes:,} bytes read). {zeros:,} are zero or not finite."
    )
    return Figure(about, bars(axes, [str(power) for power in span], shares, tooltips))


def _values(stored: NDArray[np.generic], dtype: str) -> NDArray[np.float64]:
    if dtype == "F8_E4M3":
        return E4M3_VALUES[stored.astype(np.uint8)].astype(np.float64)
    if dtype == "BF16":
        return bf16_to_f32(stored.astype(np.uint16)).astype(np.float64)
    if dtype in {"U8", "F8_E8M0"}:
        return e8m0_decode(stored.astype(np.uint8)).astype(np.float64)
    return stored.astype(np.float64)
