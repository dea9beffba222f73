"""How far predictions are from the source's: KL by position in a text, by domain, and in all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Missing, Say, Section, Table, command_for, missing, told
from halfbyte.publish.report.charts import Axes, bars


def divergence(evidence: Evidence) -> Section:
    """Return what the comparison says of predictions."""
    found = evidence.get("compare")
    if found is None:
        return Section("divergence", "Predictions", [missing(evidence, "compare", "KL to the source")])
    sides = f"{_name(found['first'])} against {_name(found['second'])}"
    about = f"{sides}, {found['dtype']} on {found['device']}, rows {found['rows']}"
    blocks: list[Block] = [Say(about)]
    positions = found.get("by_position")
    if positions:
        names = [str(begin) for begin in positions["begin"]]
        values = [float(value) for value in positions["kl"]]
        told_of = zip(names, values, positions["tokens"], strict=True)
        said = [f"from token {begin}: KL {kl:.4g} nat, {count:,} tokens" for begin, kl, count in told_of]
        drawn = bars(Axes("KL by position", "position in the text, from token", "KL in nat"), names, values, said)
        blocks.append(Figure("Mean KL by the position of the predicted token in its text.", drawn))
    else:
        blocks.append(Missing("KL by position", "compare.json does not have it", command_for("compare")))
    rows = [_row("all", found["total"]), *(_row(name, one) for name, one in found["domains"].items())]
    columns = ("domain", "tokens", "KL in nat", "KL, 95 %", "same likeliest token", "perplexity ratio")
    blocks.append(Table("Predictions by domain", columns, rows, frozenset(columns[1:])))
    return Section("divergence", "Predictions", blocks)


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    kl, low, high = one["kl"], one["kl"].get("low"), one["kl"].get("high")
    return [
        name,
        f"{int(one['tokens']):,}",
        told(kl["value"], ".4g"),
        "too few documents" if low is None or high is None else f"{float(low):.4g} to {float(high):.4g}",
        told(one["top1"]["value"], ".4f"),
        told(one["perplexity_ratio"]["value"], ".4f"),
    ]


def _name(place: Any) -> str:
    """Return the last part of a path: where it lay on somebody's disk is nobody's business."""
    return str(place).rstrip("/").rpartition("/")[2]
