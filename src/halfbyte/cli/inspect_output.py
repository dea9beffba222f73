"""Print an `Inspection` as text and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halfbyte.errors import CheckFailedError
from halfbyte.inspect.inspection import Inspection
from halfbyte.ui.console import Column, Output
from halfbyte.ui.units import count, size

ROLES = (
    Column("role", "role"),
    Column("parameters", "params", number=True),
    Column("stored_as", "stored as"),
    Column("bits_per_weight", "bits/weight", number=True),
    Column("size", "size", number=True),
)
RECIPES = (
    Column("recipe", "recipe"),
    Column("size", "output size", number=True),
    Column("change", "change", number=True),
    Column("elements", "elements", number=True),
)
TENSORS = (
    Column("name", "tensor"),
    Column("role", "role"),
    Column("format", "format"),
    Column("dtype", "dtype"),
    Column("shape", "shape"),
    Column("nbytes", "bytes", number=True),
    Column("shard", "shard"),
)
SAME = 1e-4  # relative size changes below this are shown as "same size"


def show(out: Output, inspection: Inspection) -> None:
    """Print the inspection. Raise CheckFailedError if engines would misread the checkpoint."""
    out.facts(inspection.as_dict(), lines(inspection))
    if not out.as_json:
        out.text("", None)
        out.table(role_table(inspection), ROLES)
        out.text("", None)
        out.table(recipe_table(inspection), RECIPES)
        out.text("", None)
    out.verdicts(inspection.verdicts)
    wrong = [text for level, text in inspection.verdicts if level == "bad"]
    if wrong:
        raise CheckFailedError(wrong[0], where="config.json", fix="download config.json and the weights again")


def show_tensors(out: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per tensor."""
    out.table(rows if out.as_json else [{**row, "shape": str(row["shape"])} for row in rows], TENSORS)


def lines(inspection: Inspection) -> list[tuple[str, str]]:
    """Return the labelled lines of the summary."""
    text = inspection.parameters - inspection.vision_parameters
    vision = f", plus {count(inspection.vision_parameters, 2)} for vision" if inspection.vision_parameters else ""
    shared = f", {inspection.shared_experts} shared" if inspection.shared_experts else ""
    experts = f"; {inspection.experts} experts, top-{inspection.active_experts}{shared}" if inspection.experts else ""
    moe = (
        f" ({inspection.dense_layers} dense, {inspection.layers - inspection.dense_layers} MoE)"
        if inspection.experts
        else ""
    )
    shards = "1 shard" if inspection.shards == 1 else f"{inspection.shards} shards"
    return [
        ("checkpoint", f"{inspection.source}: {inspection.family}"),
        ("parameters", f"{count(text, 3)}{vision}; {count(inspection.active_parameters, 2)} active per token"),
        ("layers", f"{inspection.layers}{moe}{experts}"),
        ("stored", f"{size(inspection.nbytes + inspection.header_nbytes)}, {inspection.tensors:,} tensors in {shards}"),
        ("elements", f"{count(inspection.elements)}, packed or not; the Hub shows this number as parameters"),
    ]


def role_table(inspection: Inspection) -> list[dict[str, Any]]:
    """Return the rows of the role table, largest first."""
    return [
        {
            "role": row.role,
            "parameters": count(row.parameters, largest="B") if row.parameters else None,
            "stored_as": row.stored_as,
            "bits_per_weight": row.bits_per_weight,
            "size": size(row.nbytes),
        }
        for row in inspection.roles
    ]


def recipe_table(inspection: Inspection) -> list[dict[str, Any]]:
    """Return the rows of the recipe table: the output size of each recipe."""
    rows: list[dict[str, Any]] = []
    for gain in inspection.recipes:
        if gain.nbytes is None:
            rows.append({"recipe": gain.recipe, "size": None, "change": gain.why_not, "elements": None})
            continue
        before = inspection.nbytes + inspection.header_nbytes
        after = gain.nbytes + gain.header_nbytes
        change = after - before
        words = f"{'+' if change > 0 else ''}{size(change)}" if abs(change) > SAME * before else "same size"
        elements = count(gain.elements or 0, largest="B")
        rows.append({"recipe": gain.recipe, "size": size(after), "change": words, "elements": elements})
    return rows
