"""Predictions section: KL divergence from the source by position, by domain and in total."""

from __future__ import annotations

from halfbyte.evidence.comparison import Comparison, Summary
from halfbyte.evidence.folder import Evidence
from halfbyte.publish.report.blocks import Block, Figure, Missing, Say, Section, Table, command_for, formatted, missing
from halfbyte.publish.report.charts import Axes, bars


def divergence(evidence: Evidence) -> Section:
    """Return the section on predictions."""
    comparison = evidence.get(Comparison)
    if comparison is None:
        return Section("divergence", "Predictions", [missing(evidence, Comparison, "KL divergence from the source")])
    number, length = comparison.rows
    rows_of_tokens = f"{number:,} rows of {length:,} tokens"
    about = f"This checkpoint against its source, {comparison.dtype} on {comparison.device}, {rows_of_tokens}"
    blocks: list[Block] = [Say(about)]
    positions = comparison.by_position
    if positions:
        names = [str(start) for start in positions.begin]
        bins = zip(names, positions.kl, positions.tokens, strict=True)
        tooltips = [f"from token {start}: KL {kl:.4g} nat, {count:,} tokens" for start, kl, count in bins]
        axes = Axes("KL by position", "position in the text (first token)", "KL (nats)")
        drawn = bars(axes, names, positions.kl, tooltips)
        blocks.append(Figure("Mean KL by position of the predicted token in its text.", drawn))
    else:
        blocks.append(Missing("KL by position", "not in compare.json", command_for(Comparison)))
    rows = [_row("all", comparison.total), *(_row(name, domain) for name, domain in comparison.domains.items())]
    columns = ("domain", "tokens", "KL (nats)", "KL, 95% CI", "top-1 agreement", "perplexity ratio")
    blocks.append(Table("Predictions by domain", columns, rows, frozenset(columns[1:])))
    return Section("divergence", "Predictions", blocks)


def _row(name: str, domain: Summary) -> list[str]:
    kl = domain.kl
    return [
        name,
        f"{domain.tokens:,}",
        formatted(kl.value, ".4g"),
        "too few documents" if kl.low is None or kl.high is None else f"{kl.low:.4g} to {kl.high:.4g}",
        formatted(domain.top1.value, ".4f"),
        formatted(domain.perplexity_ratio.value, ".4f"),
    ]
