"""Comparison section: KL divergence, top-1 agreement and perplexity against the source on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.evidence.fields import items, mapping, rows, words
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import NOT_MEASURED, counted, figure, percent
from halfbyte.publish.card.markdown import code, phrase, table

HEAD = ["Domain", "Documents", "Tokens", "KL, nats", "Top-1 agreement", "Perplexity, source", "Perplexity, this model",
        "Perplexity ratio"]  # fmt: skip


def facts(card: CardFacts) -> dict[str, Any]:
    """Return a row per domain and one for all domains."""
    comparison = card.get("compare")
    if comparison is None:
        return {"missing": card.missing("compare")}
    if not mapping(comparison, "total"):
        return {"missing": "**Not measured**: compare.json is not a valid result of `halfbyte compare`."}
    domains = {**mapping(comparison, "domains"), "all": mapping(comparison, "total")}
    emulated = mapping(comparison, "emulated")
    last = rows(comparison, "layers")[-1:]
    return {
        "missing": None,
        "rows": table(HEAD, [_row(name, row) for name, row in domains.items()]),
        "what": _emulated(emulated),
        "dtype": words(comparison, "dtype"),
        "device": words(comparison, "device"),
        "length": " rows of ".join(counted(dimension) for dimension in items(comparison, "rows")),
        "tokens": code(words(comparison, "tokens_sha256") or "not stated"),
        "last": phrase(
            "After the last layer, the hidden states have a relative error of {}, and {} of expert selections match.",
            figure(last[0], "relative_error", digits=3),
            percent(last[0], "routed_alike", decimals=1),
        )
        if last
        else None,
    }


def _emulated(emulated: Mapping[str, Any]) -> str:
    formats = ", ".join(f"{name} {format}" for name, format in emulated.items())
    return f"emulated {formats}" if formats else "unquantized activations and KV cache"


def _row(name: str, row: Any) -> list[Any]:
    return [
        name,
        counted(row, "documents"),
        counted(row, "tokens"),
        _estimate(row, "kl"),
        _estimate(row, "top1", share=True),
        figure(row, "perplexity_first"),
        figure(row, "perplexity_second"),
        _estimate(row, "perplexity_ratio"),
    ]


def _estimate(row: Any, key: str, *, share: bool = False) -> str:
    value, low, high = (
        percent(row, key, part) if share else figure(row, key, part) for part in ("value", "low", "high")
    )
    return f"{value} (no interval)" if NOT_MEASURED in (low, high) else f"{value} ({low} to {high})"
