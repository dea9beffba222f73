"""Size section: planned sizes by role before and after, and actual sizes from the output's headers."""

from __future__ import annotations

from halfbyte.evidence.folder import Evidence
from halfbyte.evidence.plan import PlanSummary
from halfbyte.families.model import Model
from halfbyte.publish.report.blocks import Block, Figure, Missing, Section, Table, command_for, missing
from halfbyte.publish.report.charts import Axes, bars
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
        rows = [[_words(role), f"{n:,}", size(nbytes), f"{100 * nbytes / total:.1f}%"] for role, (n, nbytes) in ordered]
        rows.append(["all tensors", f"{sum(n for n, _ in by_role.values()):,}", size(total), "100.0%"])
        names = [_words(role).split()[0] for role, _ in ordered]
        values = [nbytes / 1e6 for _, (_, nbytes) in ordered]
        tooltips = [f"{_words(role)}: {size(nbytes)}" for role, (_, nbytes) in ordered]
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


def _words(role: str) -> str:
    return role.replace("_", " ")
