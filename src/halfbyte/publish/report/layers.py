"""Layers section: SQNR of the weights from the journal, and hidden-state error from the comparison."""

from __future__ import annotations

import math

from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.output_folder import FOLDER
from halfbyte.engine.losses import Loss, losses_of_journal
from halfbyte.engine.pipeline import JOURNAL
from halfbyte.evidence.comparison import Comparison
from halfbyte.evidence.folder import Evidence
from halfbyte.evidence.plan import PlanSummary
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Figure,
    Fold,
    Missing,
    Section,
    Table,
    command_for,
    formatted,
    missing,
    percent,
)
from halfbyte.publish.report.charts import Axes, Line, lines


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
        [_where(loss), loss.role.replace("_", " "), f"{loss.linears:,}", _db(loss.sqnr_db), *_worst(loss)]
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


def _where(loss: Loss) -> str:
    return "none" if loss.layer is None else str(loss.layer)


def _db(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else "exact"


def _worst(loss: Loss) -> tuple[str, str]:
    return (_db(loss.worst[1]), loss.worst[0]) if loss.worst else (NOT_MEASURED, "")


def _hidden(evidence: Evidence) -> list[Block]:
    comparison = evidence.get(Comparison)
    if comparison is None:
        return [missing(evidence, Comparison, "hidden-state error by layer")]
    points = [
        (float(row.layer), row.relative_error, f"layer {row.layer}: {row.relative_error:.4g}")
        for row in comparison.layers
    ]
    rows = [
        [
            str(row.layer),
            formatted(row.relative_error, ".4g"),
            formatted(row.cosine, ".5f"),
            percent(row.routed_alike),
        ]
        for row in comparison.layers
    ]
    columns = ("layer", "relative error", "cosine similarity", "same expert routing")
    return [
        Figure(
            "Error of the hidden states after each layer, relative to the source.",
            lines(Axes("Hidden-state error by layer", "layer", "relative error"), [Line("error", points)]),
        ),
        Fold(f"Table: hidden states of {len(rows)} layers",
             [Table("Hidden states by layer", columns, rows, frozenset(columns[1:]))]),
    ]  # fmt: skip
