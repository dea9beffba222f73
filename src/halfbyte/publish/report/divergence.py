"""Predictions section: KL divergence from the source by position, by domain and in total."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.evidence import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Missing, Say, Section, Table, command_for, formatted, missing
from halfbyte.publish.report.charts import Axes, bars


def divergence(evidence: Evidence) -> Section:
    """Return the section on predictions."""
    comparison = evidence.get("compare")
    if comparison is None:
        return Section("divergence", "Predictions", [missing(evidence, "compare", "KL divergence from the source")])
    about = f"This checkpoint against its source, {comparison['dtype']} on {comparison['device']}, {_rows(comparison)}"
    blocks: list[Block] = [Say(about)]
    positions = comparison.get("by_position")
    if positions:
        names = [str(start) for start in positions["begin"]]
        values = [float(value) for value in positions["kl"]]
        bins = zip(names, values, positions["tokens"], strict=True)
        tooltips = [f"from token {start}: KL {kl:.4g} nat, {count:,} tokens" for start, kl, count in bins]
        drawn = bars(Axes("KL by position", "position in the text (first token)", "KL (nats)"), names, values, tooltips)
        blocks.append(Figure("Mean KL by position of the predicted token in its text.", drawn))
    else:
        blocks.append(Missing("KL by position", "not in compare.json", command_for("compare")))
    rows = [_row("all", comparison["total"]), *(_row(name, domain) for name, domain in comparison["domains"].items())]
    columns = ("domain", "tokens", "KL (nats)", "KL, 95% CI", "top-1 agreement", "perplexity ratio")
    blocks.append(Table("Predictions by domain", columns, rows, frozenset(columns[1:])))
    return Section("divergence", "Predictions", blocks)


def _row(name: str, domain: Mapping[str, Any]) -> list[str]:
    kl, low, high = domain["kl"], domain["kl"].get("low"), domain["kl"].get("high")
    return [
        name,
        f"{int(domain['tokens']):,}",
        formatted(kl["value"], ".4g"),
        "too few documents" if low is None or high is None else f"{float(low):.4g} to {float(high):.4g}",
        formatted(domain["top1"]["value"], ".4f"),
        formatted(domain["perplexity_ratio"]["value"], ".4f"),
    ]


def _rows(comparison: Mapping[str, Any]) -> str:
    number, length = comparison["rows"]
    return f"{int(number):,} rows of {int(length):,} tokens"
