"""The record of calibration coverage: how many tokens each routed expert received."""

from __future__ import annotations

from dataclasses import dataclass

from halfbyte.calibrate.report import LayerCoverage
from halfbyte.evidence.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage(Record):
    """Tokens per routed expert over all layers, written by a run with calibration."""

    kind = "coverage"
    file = "coverage.json"
    created_by = "halfbyte quantize SRC {out} -r RECIPE"

    moe_layers: int
    fewest_tokens: int | None
    median_tokens: float | None
    unseen_experts: int
    backstopped_experts: int
    layers: tuple[LayerCoverage, ...]
