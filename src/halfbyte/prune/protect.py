"""Detect super experts, which are kept regardless of their score.

A few experts write outputs hundreds of times larger than all others, and attention sinks depend on them. Models that
lose one repeat themselves (Super Experts, arXiv 2507.23279), and a mean over tokens may not show them. They are
detected by the largest absolute value of their output, by one of two rules:

- Across layers, if the statistics of all layers are available: above the 99.5th percentile of all experts of all
  layers, and above a tenth of the largest. This is the rule of the paper and of the public REAP code, except that it
  uses absolute values, identifies experts by their layer's own number, and includes every layer. The public code
  excludes the last quarter of the layers, where large outputs are common. They are included here: the percentile
  protects at most one expert in 200, each replaces an expert that barely made the cut, and dropping one that matters
  breaks the model.
- Within one layer, if experts are dropped before later layers are measured: above ten times the layer's median, and
  above a tenth of its largest. A percentile within one layer would always select some expert; a multiple of the median
  selects none if there are no outliers.

Experts without a measured output count in neither percentile nor median.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from halfbyte.calibrate.stats import ExpertStats
from halfbyte.prune.saliency import check_possible

PERCENTILE = 99.5
OF_LARGEST = 0.1
OF_MEDIAN = 10.0


def super_experts(layers: Mapping[int, ExpertStats]) -> dict[int, tuple[int, ...]]:
    """Return the super experts of each layer, judged across all layers; layers without any are omitted."""
    largest = {layer: _largest(layer, stats) for layer, stats in sorted(layers.items())}
    outputs = np.concatenate([values[values > 0] for values in largest.values()]) if largest else np.zeros(0)
    if not len(outputs):
        return {}
    least = max(float(np.percentile(outputs, PERCENTILE)), OF_LARGEST * float(outputs.max()))
    by_layer = {layer: _above(values, least) for layer, values in largest.items()}
    return {layer: experts for layer, experts in by_layer.items() if experts}


def super_experts_of_layer(layer: int, stats: ExpertStats) -> tuple[int, ...]:
    """Return the super experts of one layer, judged within the layer."""
    values = _largest(layer, stats)
    measured = values[values > 0]
    if not len(measured):
        return ()
    return _above(values, max(OF_MEDIAN * float(np.median(measured)), OF_LARGEST * float(measured.max())))


def _largest(layer: int, stats: ExpertStats) -> NDArray[np.float64]:
    check_possible(layer, stats.out_amax, "largest output")
    return stats.out_amax.astype(np.float64)


def _above(values: NDArray[np.float64], least: float) -> tuple[int, ...]:
    return tuple(int(expert) for expert in np.flatnonzero(values > least))
