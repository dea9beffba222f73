"""Check GPTQ weights, which cannot be reproduced without the calibration data, against error bounds.

Their global scale follows exactly from the source, and their rounding errors are about as large as NVFP4's, some 19 dB
below the weights. A wrong expert, a wrong projection or a shifted scale gives 0 dB or less.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.reader import Reader
from halfbyte.formats.encoded import Array
from halfbyte.formats.reference import floats, gptq, nvfp4

LEAST_DB = 10.0


def far_off(weights: Mapping[str, Array], amax: np.float32, evidence: Evidence, output: Reader) -> list[str]:
    """Return the linears of a job whose global scale or error is impossible for GPTQ on their source."""
    wrong: list[str] = []
    expected = gptq.tensor_scale(amax)
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
            wrong.append(f"{module}: SQNR below {LEAST_DB:.0f} dB")
    return wrong
