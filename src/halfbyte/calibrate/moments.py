"""Second moments of what routed experts are given: compensated rounding needs them, until a layer is written.

gate_proj and up_proj of all experts share the moments of all tokens: any token could be routed to them, and one factor
serves them all. down_proj has its expert's own, each token weighted by what the router makes of the output. For E
experts of width F and a model of width D that is 8 * (E * F^2 + D^2) bytes: 13 GB for a layer of Kimi-K2, so they are
never saved, and a layer whose weights are not all written is measured again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_TOKENS = 1 << 15  # at a time, in FP64


@dataclass(slots=True, eq=False)
class Moments:
    """Sums of x x^T, in FP64."""

    given: F64 | None = None  # [D, D]: of what gate_proj and up_proj are given
    acts: dict[int, F64] = field(default_factory=dict[int, F64])  # [F, F] by expert: of what down_proj is given


def second_moments(x: torch.Tensor, weights: torch.Tensor | None = None) -> F64:
    """Return the sum of x x^T over tokens [T, K], each times its weight squared; in parts of a fixed size."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for start in range(0, len(x), _TOKENS):
        part = x[start : start + _TOKENS].double()
        if weights is not None:
            part = part * weights[start : start + _TOKENS, None].double()
        total += part.t() @ part
    return total.numpy()
