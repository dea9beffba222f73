"""Compensated weights cannot be made again without the calibration tokens, but they cannot be far from their source.

Their tensor scale follows from the source to the bit, and their rounding errors stay of the size of NVFP4's own, some
19 dB below the weights. A wrong expert, a wrong projection or a shifted scale is at 0 dB or worse.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from halfbyte.audit.evidence import Evidence
from halfbyte.numerics.encoded import Array
from halfbyte.numerics.reference import compensate, floats, nvfp4
from halfbyte.source.read import Reader

LEAST_DB = 10.0


def far_off(weights: Mapping[str, Array], amax: np.float32, evidence: Evidence, output: Reader) -> list[str]:
    """Say which linears of a job are not what compensating their source can give."""
    wrong: list[str] = []
    expected = compensate.tensor_scale(amax)
    for module, weight in weights.items():
        tensors = evidence.checkpoint.tensors
        packed, scale, scale_2 = (
            output.tensor(tensors[f"{module}.{suffix}"]) for suffix in ("weight", "weight_scale", "weight_scale_2")
        )
        if scale_2.tobytes() != np.float32(expected).tobytes():
            wrong.append(f"{module}: weight_scale_2")
            continue
        exact = floats.bf16_to_f32(weight).astype(np.float64)
        error = exact - floats.bf16_to_f32(nvfp4.decode(packed, scale, expected))
        signal, noise = float(np.square(exact).sum()), float(np.square(error).sum())
        if noise > signal / 10 ** (LEAST_DB / 10):
            wrong.append(f"{module}: errors less than {LEAST_DB:.0f} dB below its source")
    return wrong
