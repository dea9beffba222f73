"""What each layer lost: SQNR of its weights, from the journal, and the error of hidden states, from the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

from halfbyte.folders import FOLDER
from halfbyte.losses import Loss, losses_of_journal
from halfbyte.pipeline import JOURNAL
from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import (
    NOT_MEASURED,
    Block,
    Figure,
    Fold,
    Missing,
    Section,
    Table,
    command_for,
    missing,
    percent,
    told,
)
from halfbyte.publish.report.charts import Axes, Line, lines
from halfbyte.write import Journal


def layers(evidence: Evidence) -> Section:
    """Return what is known by layer."""
    return Section("layers", "Layers", [*_weights(evidence), *_hidden(evidence)])


def _weights(evidence: Evidence) -> list[Block]:
    plan = evidence.get("plan")
    shards: Sequence[str] = list(plan["shards"]) if plan else []
    found = losses_of_journal(Journal(evidence.out / FOLDER / JOURNAL).lines(), shards) if shards else None
    again = command_for("plan")
    if found is None:
        return [Missing("SQNR by layer", "no journal of this version says it", again)]
    if not found:
        return [Missing("SQNR by layer", "nothing was quantized", again)]
    rows = [
        [_where(loss), loss.role.replace("_", " "), f"{loss.linears:,}", _db(loss.sqnr_db), *_worst(loss)]
        for loss in found
    ]
    columns = ("layer", "role", "linears", "SQNR", "worst", "worst linear")
    table = Table("SQNR of the weights by layer and role", columns, rows, frozenset({"linears", "SQNR", "worst"}))
    by_role: dict[str, list[tuple[float, float, str]]] = {}
    for loss in found:
        if loss.layer is not None and math.isfinite(loss.sqnr_db):
            said = f"layer {loss.layer}, {loss.role.replace('_', ' ')}: {loss.sqnr_db:.2f} dB"
            by_role.setdefault(loss.role.replace("_", " "), []).append((float(loss.layer), loss.sqnr_db, said))
    blocks: list[Block] = []
    if by_role:
        axes = Axes("SQNR of the weights by layer", "layer", "SQNR in dB", from_zero=False, least=1.0)
        drawn = lines(axes, [Line(role, points) for role, points in by_role.items()])
        about = "Signal over quantization noise of the weights, exact over all linears of a layer. Higher is better."
        blocks.append(Figure(about, drawn))
    return [*blocks, Fold(f"SQNR of {len(rows)} layers and roles as a table", [table])]


def _where(loss: Loss) -> str:
    return "outside" if loss.layer is None else str(loss.layer)


def _db(value: float) -> str:
    return f"{value:.2f} dB" if math.isfinite(value) else "exact"


def _worst(loss: Loss) -> tuple[str, str]:
    return (_db(loss.worst[1]), loss.worst[0]) if loss.worst else (NOT_MEASURED, "")


def _hidden(evidence: Evidence) -> list[Block]:
    found = evidence.get("compare")
    if found is None:
        return [missing(evidence, "compare", "the error of hidden states by layer")]
    by_layer = found["layers"]
    points = [
        (float(row["layer"]), float(row["relative_error"]), f"layer {row['layer']}: {float(row['relative_error']):.4g}")
        for row in by_layer
    ]
    rows = [
        [
            str(row["layer"]),
            told(row["relative_error"], ".4g"),
            told(row["cosine"], ".5f"),
            percent(row["routed_alike"]),
        ]
        for row in by_layer
    ]
    columns = ("layer", "relative error", "cosine", "routed alike")
    return [
        Figure(
            "Error of the hidden states after each layer, relative to the source's.",
            lines(Axes("Hidden-state error by layer", "layer", "relative error"), [Line("error", points)]),
        ),
        Fold(f"Hidden states of {len(rows)} layers as a table",
             [Table("Hidden states by layer", columns, rows, frozenset(columns[1:]))]),
    ]  # fmt: skip
