"""Comparison section: KL divergence, top-1 agreement and perplexity against the source on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.comparison import Comparison, Estimate, Summary
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, figure, percent
from halfbyte.publish.card.markdown import code, phrase, table

HEAD = ["Domain", "Documents", "Tokens", "KL, nats", "Top-1 agreement", "Perplexity, source", "Perplexity, this model",
        "Perplexity ratio"]  # fmt: skip


def facts(card: CardFacts) -> dict[str, Any]:
    """Return a row per domain and one for all domains."""
    comparison = card.get(Comparison)
    if comparison is None:
        return {"missing": card.missing(Comparison)}
    domains = {**comparison.domains, "all": comparison.total}
    last = comparison.layers[-1] if comparison.layers else None
    return {
        "missing": None,
        "rows": table(HEAD, [_row(name, row) for name, row in domains.items()]),
        "what": _emulated(comparison.emulated),
        "dtype": comparison.dtype,
        "device": comparison.device,
        "length": " rows of ".join(counted(dimension) for dimension in comparison.rows),
        "tokens": code(comparison.tokens_sha256),
        "last": phrase(
            "After the last layer, the hidden states have a relative error of {}, and {} of expert selections match.",
            figure(last.relative_error, digits=3),
            percent(last.routing_agreement, decimals=1),
        )
        if last
        else None,
    }


def _emulated(emulated: Mapping[str, str]) -> str:
    formats = ", ".join(f"{name} {format}" for name, format in emulated.items())
    return f"emulated {formats}" if formats else "unquantized activations and KV cache"


def _row(name: str, row: Summary) -> list[Any]:
    return [
        name,
        counted(row.documents),
        counted(row.tokens),
        _estimate(row.kl),
        _estimate(row.top1, share=True),
        figure(row.perplexity_first),
        figure(row.perplexity_second),
        _estimate(row.perplexity_ratio),
    ]


def _estimate(estimate: Estimate, *, share: bool = False) -> str:
    value, low, high = (
        percent(part) if share else figure(part) for part in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} (no interval)" if estimate.low is None or estimate.high is None else f"{value} ({low} to {high})"
