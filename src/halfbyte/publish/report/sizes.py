"""Where the bytes are: by role before and after, from the plan; and after, from the headers of the output."""

from __future__ import annotations

from typing import Any, cast

from halfbyte.models.model import Model
from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Missing, Section, Table, command_for, missing
from halfbyte.publish.report.charts import Axes, bars
from halfbyte.terminal.units import size


def sizes(evidence: Evidence, model: Model | None, why_no_model: str) -> Section:
    """Return the sizes of the roles."""
    plan = evidence.get("plan")
    roles: Any = plan.get("roles") if plan else None
    blocks: list[Block] = []
    if isinstance(roles, list):
        rows = [
            [str(row["role"]), str(row["action"]), size(int(row["read_nbytes"])), size(int(row["write_nbytes"]))]
            for row in cast("list[Any]", roles)
        ]
        numbers = frozenset({"before", "after"})
        blocks.append(Table("As planned", ("role", "what is done", "before", "after"), rows, numbers))
    elif plan is not None:
        why = "this plan.json does not have them: an earlier version wrote it"
        blocks.append(Missing("sizes by role before and after", why, command_for("plan")))
    if model is None:
        blocks.append(Missing("sizes by role", why_no_model, "halfbyte inspect OUT"))
    else:
        found: dict[str, list[int]] = {}
        for role, tensor in model.tensors():
            row = found.setdefault(role, [0, 0])
            row[0] += 1
            row[1] += tensor.nbytes
        total = sum(nbytes for _, nbytes in found.values())
        ordered = sorted(found.items(), key=lambda item: -item[1][1])
        rows = [
            [_words(role), f"{n:,}", size(nbytes), f"{100 * nbytes / total:.1f} %"] for role, (n, nbytes) in ordered
        ]
        rows.append(["all", f"{sum(n for n, _ in found.values()):,}", size(total), "100.0 %"])
        names = [_words(role).split()[0] for role, _ in ordered]
        values = [nbytes / 1e6 for _, (_, nbytes) in ordered]
        said = [f"{_words(role)}: {size(nbytes)}" for role, (_, nbytes) in ordered]
        drawn = bars(Axes("Size by role", "role", "megabytes"), names, values, said)
        blocks.append(Figure("Size of the output by role, in megabytes.", drawn))
        numbers = frozenset({"tensors", "size", "share"})
        blocks.append(
            Table("As written (from the headers of the output)", ("role", "tensors", "size", "share"), rows, numbers)
        )
    if plan is None:
        blocks.append(missing(evidence, "plan", "sizes before"))
    else:
        before, after = int(plan["read_nbytes"]), int(plan["write_nbytes"])
        named = (("read of the source", before), ("written, headers included", after))
        rows = [[name, f"{nbytes:,}", size(nbytes)] for name, nbytes in named]
        blocks.append(Table("In all", ("what", "bytes", "size"), rows, frozenset({"bytes", "size"})))
    return Section("sizes", "Size", blocks)


def _words(role: str) -> str:
    return role.replace("_", " ")
