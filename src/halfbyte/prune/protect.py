"""Experts that stay whatever their score: super experts.

A few experts write values hundreds of times larger than all others, on which attention sinks rest. Models that lose one
repeat themselves (Super Experts, arXiv 2507.23279), and a mean over tokens need not show them. They are known by the
largest absolute value of their output. Two rules:

- Across layers, where the statistics of all layers are there: above the 99.5th percentile of all experts of all layers,
  and above a tenth of the largest. This is the rule of the paper and of the public REAP code, except that the values
  are absolute, that experts are named by their layer's own number, and that every layer counts. The public code leaves
  the last quarter of the layers out, where large outputs are usual. Here they are kept too: by the percentile it is at
  most one expert in 200, each costs the place of one that nearly did not stay, and to drop one that matters costs the
  model.
- In a layer alone, where experts are dropped while later layers are not yet measured: above ten times the median of
  the layer, and above a tenth of its largest. A percentile of one layer would always name somebody; a multiple of the
  median names nobody where nobody stands out.

Experts whose output was never measured count in neither percentile nor median.
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
    """Return the super experts of every layer, judged across all of them; layers without one are left out."""
    largest = {layer: _largest(layer, stats) for layer, stats in sorted(layers.items())}
    everyone = np.concatenate([values[values > 0] for values in largest.values()]) if largest else np.zeros(0)
    if not len(everyone):
        return {}
    least = max(float(np.percentile(everyone, PERCENTILE)), OF_LARGEST * float(everyone.max()))
    found = {layer: _above(values, least) for layer, values in largest.items()}
    return {layer: experts for layer, experts in found.items() if experts}


def super_experts_of_layer(layer: int, stats: ExpertStats) -> tuple[int, ...]:
    """Return the super experts of a layer, judged by itself."""
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
