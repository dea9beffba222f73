"""Expert coverage of the calibration data: tokens per expert, and experts that used the backstop scale."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.recipe.decisions import InputScale


@dataclass(frozen=True, slots=True)
class LayerCoverage:
    """Tokens per routed expert of one layer."""

    layer: int
    fewest: int
    median: float
    unseen: tuple[int, ...]  # experts without tokens
    backstopped: tuple[int, ...]  # experts with the backstop scale


@dataclass(frozen=True, slots=True)
class Report:
    """LayerCoverage of all layers."""

    layers: list[LayerCoverage]

    def summary(self) -> dict[str, Any]:
        """Return summary numbers over all layers."""
        return {
            "moe_layers": len(self.layers),
            "fewest_tokens": min((layer.fewest for layer in self.layers), default=None),
            "median_tokens": statistics.median(layer.median for layer in self.layers) if self.layers else None,
            "unseen_experts": sum(len(layer.unseen) for layer in self.layers),
            "backstopped_experts": sum(len(layer.backstopped) for layer in self.layers),
        }

    def line(self) -> str:
        """Return the summary as one line."""
        summary = self.summary()
        if not self.layers:
            return "no routed experts"
        return (
            f"at least {summary['fewest_tokens']:,} tokens per expert (median {summary['median_tokens']:,.0f}), "
            f"{summary['unseen_experts']} without tokens, {summary['backstopped_experts']} with the backstop scale"
        )


def report(layers: Mapping[int, LayerStats], rule: InputScale | None) -> Report:
    """Return the expert coverage of every layer under a recipe's input scale rule."""
    layer_coverage: list[LayerCoverage] = []
    for layer, stats in sorted(layers.items()):
        if (experts := stats.experts) is None:
            continue
        per_expert = rule is not None and rule.per == "expert"
        min_tokens = (rule.min_tokens or 0) if rule is not None and per_expert else 0
        layer_coverage.append(
            LayerCoverage(
                layer=layer,
                fewest=int(experts.seen.min()),
                median=float(statistics.median(experts.seen.tolist())),
                unseen=tuple(number for number, seen in enumerate(experts.seen) if not seen),
                backstopped=tuple(
                    number
                    for number, seen in enumerate(experts.seen)
                    if per_expert
                    and (seen < min_tokens or not experts.down_amax[number] or not experts.input_amax[number])
                ),
            )
        )
    return Report(layer_coverage)
