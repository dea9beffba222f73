"""Hessians (X^T X) of routed expert inputs for GPTQ.

The gate and up projections of all experts share the Hessian of all tokens, so one factorization serves them all. The
down projection has one Hessian per expert, with each token weighted by its router weight. For E experts of width F and
a model of width D this takes 8 * (E * F^2 + D^2) bytes, 13 GB per layer of Kimi-K2. Hessians are therefore never saved,
and a layer whose weights are not completely written is measured again.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

F64 = NDArray[np.float64]
_TOKENS = 1 << 15  # tokens per FP64 product


def hessian(x: torch.Tensor, weights: torch.Tensor | None = None) -> F64:
    """Return the sum of w^2 x x^T over tokens [T, K], accumulated in chunks of a fixed size."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for start in range(0, len(x), _TOKENS):
        part = x[start : start + _TOKENS].double()
        if weights is not None:
            part = part * weights[start : start + _TOKENS, None].double()
        total += part.t() @ part
    return total.numpy()
