"""Calibration section: data, and tokens per expert."""

from __future__ import annotations

from typing import Any

from halfbyte.evidence.coverage import Coverage, LayerCoverage
from halfbyte.evidence.plan import CalibrateChoice, CalibrationFacts, InputScale, PlanSummary
from halfbyte.publish.card.facts import CardFacts
from halfbyte.publish.card.figures import counted, figure
from halfbyte.publish.card.markdown import Markdown, code, phrase, table
from halfbyte.publish.card.sections.reproduction import source_of_data

_SHOWN = 5  # layers


def calibrates(card: CardFacts) -> bool:
    """Whether the recipe uses calibration data."""
    return bool(card.plan and (card.plan.calibration or card.plan.choices.calibrate))


def facts(card: CardFacts) -> dict[str, Any]:
    """Return the calibration settings and expert coverage."""
    if not calibrates(card):
        return {"calibrated": False, "missing": card.missing(PlanSummary) if card.plan is None else None}
    coverage = card.get(Coverage)
    head = ["Layer", "Minimum tokens", "Median tokens", "Experts without tokens", "Backstopped experts"]
    return {
        "calibrated": True,
        "how": table(["", ""], _how(card)),
        "coverage": table(["", ""], _coverage(coverage)) if coverage else None,
        "missing": card.missing(Coverage) if coverage is None else None,
        "layers": table(head, [_layer(row) for row in _worst_layers(coverage)]) if coverage else None,
    }


def _how(card: CardFacts) -> list[tuple[str, Any]]:
    calibration = (card.plan.calibration if card.plan else None) or CalibrationFacts()
    options = (card.recipe.calibrate if card.recipe else None) or CalibrateChoice()
    scale = (card.quantize.input_scale if card.quantize else None) or InputScale()
    tokens = [f"{domain} {counted(number)}" for domain, number in calibration.domains.items()]
    size = [counted(dimension) for dimension in calibration.rows] if calibration.rows else [None, None]
    return [
        ("Data", Markdown(", ".join(source_of_data(card))) or None),
        ("Rows", phrase("{} of {} tokens, {}", *size, options.rows)),
        ("Tokens by domain", ", ".join(tokens) or None),
        ("Tokens, SHA-256", code(calibration.tokens_sha256 or "not stated")),
        ("Forward pass", phrase("{} weights, {}", options.propagate, calibration.dtype)),
        ("Input scales", phrase("one per {}", scale.per)),
    ]


def _coverage(coverage: Coverage) -> list[tuple[str, Any]]:
    return [
        ("MoE layers", counted(coverage.moe_layers)),
        ("Minimum tokens per expert", counted(coverage.fewest_tokens)),
        ("Median tokens per expert", figure(coverage.median_tokens, digits=6)),
        ("Experts without tokens", counted(coverage.unseen_experts)),
        ("Experts with a backstop scale", counted(coverage.backstopped_experts)),
    ]


def _layer(row: LayerCoverage) -> list[Any]:
    tokens = [counted(row.layer), counted(row.fewest), figure(row.median, digits=6)]
    return [*tokens, len(row.unseen), len(row.backstopped)]


def _worst_layers(coverage: Coverage) -> list[LayerCoverage]:
    """Return the layers with the fewest tokens per expert."""
    return sorted(coverage.layers, key=lambda row: (row.fewest, row.layer))[:_SHOWN]
