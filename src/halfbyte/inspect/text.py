"""What `halfbyte inspect` says: an `Inspection` in words and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from halfbyte.errors import CheckFailedError
from halfbyte.inspect.inspection import Inspection
from halfbyte.terminal.console import Column, Output
from halfbyte.terminal.units import count, size

ROLES = (
    Column("role", "role"),
    Column("parameters", "params", number=True),
    Column("stored_as", "stored as"),
    Column("bits_per_weight", "bits/weight", number=True),
    Column("size", "size", number=True),
)
RECIPES = (
    Column("recipe", "recipe"),
    Column("size", "would be", number=True),
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
SAME = 1e-4  # a change of size below this part of it is none


def show(out: Output, found: Inspection) -> None:
    """Show everything; a checkpoint that engines would misread is a failed check."""
    out.facts(found.as_dict(), lines(found))
    if not out.as_json:
        out.text("", None)
        out.table(role_table(found), ROLES)
        out.text("", None)
        out.table(recipe_table(found), RECIPES)
        out.text("", None)
    out.verdicts(found.verdicts)
    wrong = [text for level, text in found.verdicts if level == "bad"]
    if wrong:
        raise CheckFailedError(wrong[0], where="config.json", fix="download config.json and the weights again")


def show_tensors(out: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show tensors, one a line."""
    out.table(rows if out.as_json else [{**row, "shape": str(row["shape"])} for row in rows], TENSORS)


def lines(found: Inspection) -> list[tuple[str, str]]:
    """Return the facts in words."""
    text = found.parameters - found.vision_parameters
    vision = f", and {count(found.vision_parameters, 2)} of vision" if found.vision_parameters else ""
    shared = f", {found.shared_experts} shared" if found.shared_experts else ""
    experts = f"; {found.experts} experts, top-{found.active_experts}{shared}" if found.experts else ""
    moe = f" ({found.dense_layers} dense, {found.layers - found.dense_layers} MoE)" if found.experts else ""
    shards = "1 shard" if found.shards == 1 else f"{found.shards} shards"
    return [
        ("checkpoint", f"{found.source}: {found.family}"),
        ("parameters", f"{count(text, 3)}{vision}; a token passes through {count(found.active_parameters, 2)}"),
        ("layers", f"{found.layers}{moe}{experts}"),
        ("stored", f"{size(found.nbytes)}, {found.tensors:,} tensors in {shards}"),
        ("elements", f"{count(found.elements)}, which the Hub shows as parameters, packed or not"),
    ]


def role_table(found: Inspection) -> list[dict[str, Any]]:
    """Return the roles in words, the largest first."""
    return [
        {
            "role": row.role,
            "parameters": count(row.parameters, largest="B") if row.parameters else None,
            "stored_as": row.stored_as,
            "bits_per_weight": row.bits_per_weight,
            "size": size(row.nbytes),
        }
        for row in found.roles
    ]


def recipe_table(found: Inspection) -> list[dict[str, Any]]:
    """Return what each recipe would make of it, in words."""
    rows: list[dict[str, Any]] = []
    for gain in found.recipes:
        if gain.nbytes is None:
            rows.append({"recipe": gain.recipe, "size": None, "change": gain.why_not, "elements": None})
            continue
        change = gain.nbytes - found.nbytes
        words = f"{'+' if change > 0 else ''}{size(change)}" if abs(change) > SAME * found.nbytes else "same size"
        elements = count(gain.elements or 0, largest="B")
        rows.append({"recipe": gain.recipe, "size": size(gain.nbytes), "change": words, "elements": elements})
    return rows
