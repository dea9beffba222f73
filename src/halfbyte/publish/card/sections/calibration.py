"""Calibration section: data, and tokens per expert."""

from __future__ import annotations

from typing import Any

from halfbyte.evidence.fields import items, mapping, rows, whole, words
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, figure
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.sections.reproduction import source_of_data


def calibrates(card: CardFacts) -> bool:
    """Whether the recipe uses calibration data."""
    return bool(mapping(card.plan, "calibration") or mapping(card.recipe, "calibrate"))


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the calibration settings and expert coverage."""
    if not calibrates(card):
        return {"calibrated": False, "planned": card.get("plan") is not None, "missing": card.missing("plan")
                if card.get("plan") is None else None}  # fmt: skip
    coverage = card.get("coverage")
    return {
        "calibrated": True,
        "how": table(["", ""], _how(card)),
        "coverage": table(["", ""], _coverage(card)) if coverage else None,
        "missing": card.missing("coverage") if coverage is None else None,
        "layers": table(
            ["Layer", "Minimum tokens", "Median tokens", "Experts without tokens", "Backstopped experts"],
            [[counted(row, "layer"), counted(row, "fewest"), figure(row, "median", digits=6),
              len(items(row, "unseen")), len(items(row, "backstopped"))] for row in _worst_layers(card)],
        ) if coverage else None,
    }  # fmt: skip


def _how(card: CardFacts) -> list[tuple[str, Any]]:
    calibration, options = mapping(card.plan, "calibration"), mapping(card.recipe, "calibrate")
    tokens = [f"{domain} {counted(number)}" for domain, number in mapping(calibration, "domains").items()]
    size = [counted(dimension) for dimension in items(calibration, "rows")]
    return [
        ("Data", Markdown(", ".join(source_of_data(card))) or None),
        ("Rows", phrase("{} of {} tokens, {}", *(size if len(size) == 2 else (None, None)), words(options, "rows"))),  # noqa: PLR2004
        ("Tokens by domain", ", ".join(tokens) or None),
        ("Tokens, SHA-256", code(words(calibration, "tokens_sha256") or "not stated")),
        ("Forward pass", phrase("{} weights, {}", words(options, "propagate"), words(calibration, "dtype"))),
        ("Input scales", phrase("one per {}", words(card.recipe, "quantize", "input_scale", "per"))),
    ]


def _coverage(card: CardFacts) -> list[tuple[str, Any]]:
    coverage = card.get("coverage") or {}
    return [
        ("MoE layers", counted(coverage, "moe_layers")),
        ("Minimum tokens per expert", counted(coverage, "fewest_tokens")),
        ("Median tokens per expert", figure(coverage, "median_tokens", digits=6)),
        ("Experts without tokens", counted(coverage, "unseen_experts")),
        ("Experts with a backstop scale", counted(coverage, "backstopped_experts")),
    ]


def _worst_layers(card: CardFacts) -> list[Any]:
    """Return the five layers with the fewest tokens per expert."""
    layers = [row for row in rows(card.get("coverage"), "layers") if whole(row, "fewest") is not None]
    return sorted(layers, key=lambda row: (whole(row, "fewest") or 0, whole(row, "layer") or 0))[:5]
