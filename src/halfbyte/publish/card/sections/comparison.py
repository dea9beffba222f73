"""How far the checkpoint is from its source on the same tokens: KL, agreement and perplexity, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfbyte.publish.card.figures import NOT_MEASURED, counted, figure, percent
from halfbyte.publish.card.known import Known
from halfbyte.publish.card.markdown import code, phrase, table
from halfbyte.publish.card.reading import items, mapping, rows, words

HEAD = ["Domain", "Documents", "Tokens", "KL, nats", "Same top-1", "Perplexity, source", "Perplexity, this", "Ratio"]


def facts(known: Known) -> dict[str, Any]:
    """Return a row for each domain and one for all."""
    found = known.get("compare")
    if found is None:
        return {"missing": known.missing("compare")}
    if not mapping(found, "total"):
        return {"missing": "**Not measured**: compare.json is no result of `halfbyte compare`."}
    named = {**mapping(found, "domains"), "all": mapping(found, "total")}
    emulated = mapping(found, "emulated")
    last = rows(found, "layers")[-1:]
    return {
        "missing": None,
        "rows": table(HEAD, [_row(name, row) for name, row in named.items()]),
        "what": _emulated(emulated),
        "dtype": words(found, "dtype"),
        "device": words(found, "device"),
        "length": " rows of ".join(counted(one) for one in items(found, "rows")),
        "tokens": code(words(found, "tokens_sha256") or "not stated"),
        "last": phrase(
            "After the last layer the hidden states differ by {} (relative error), and {} of the router's choices are "
            "the same.",
            figure(last[0], "relative_error", digits=3),
            percent(last[0], "routed_alike", decimals=1),
        )
        if last
        else None,
    }


def _emulated(emulated: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} {how}" for name, how in emulated.items())
    return f"besides the weights: {told}" if told else "the weights only, activations and KV cache unquantized"


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
