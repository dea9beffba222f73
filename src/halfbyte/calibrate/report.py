"""How well the data covered the experts: who saw how many tokens, and who needed another's scale."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from halfbyte.calibrate.stats import LayerStats
from halfbyte.recipe.decisions import InputScale


@dataclass(frozen=True, slots=True)
class Coverage:
    """Tokens that the routed experts of one layer saw; `unseen` lists those that saw none, `backstopped` the helped."""

    layer: int
    fewest: int
    median: float
    unseen: list[int]
    backstopped: list[int]


@dataclass(frozen=True, slots=True)
class Report:
    """Of all layers."""

    layers: list[Coverage]

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept in a file."""
        return {**self.summary(), "layers": [asdict(layer) for layer in self.layers]}

    def summary(self) -> dict[str, Any]:
        """Return the whole in a few numbers."""
        return {
            "moe_layers": len(self.layers),
            "fewest_tokens": min((layer.fewest for layer in self.layers), default=None),
            "median_tokens": statistics.median(layer.median for layer in self.layers) if self.layers else None,
            "unseen_experts": sum(len(layer.unseen) for layer in self.layers),
            "backstopped_experts": sum(len(layer.backstopped) for layer in self.layers),
        }

    def line(self) -> str:
        """Return the whole in a sentence."""
        found = self.summary()
        if not self.layers:
            return "no routed experts"
        return (
            f"experts saw {found['fewest_tokens']:,} tokens or more (median {found['median_tokens']:,.0f}), "
            f"{found['unseen_experts']} saw none, {found['backstopped_experts']} got the backstop's scale"
        )


def report(layers: Mapping[int, LayerStats], rule: InputScale | None) -> Report:
    """Return how the experts of every layer fared under a recipe's rule."""
    found: list[Coverage] = []
    for layer, stats in sorted(layers.items()):
        if (experts := stats.experts) is None:
            continue
        helped = rule is not None and rule.per == "expert"
        fewest = (rule.min_tokens or 0) if rule is not None and helped else 0
        found.append(
            Coverage(
                layer=layer,
                fewest=int(experts.seen.min()),
                median=float(statistics.median(experts.seen.tolist())),
                unseen=[number for number, seen in enumerate(experts.seen) if not seen],
                backstopped=[
                    number
                    for number, seen in enumerate(experts.seen)
                    if helped and (seen < fewest or not experts.down_amax[number] or not experts.input_amax[number])
                ],
            )
        )
    return Report(found)
