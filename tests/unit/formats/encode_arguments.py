"""Arguments of encode methods besides the weights: GPTQ needs the inputs, the others nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from halfbyte.formats.reference import gptq


def encode_arguments(method: str, columns: int) -> dict[str, Any]:
    """Return the arguments of `encode` for a method, on inputs with correlated channels of different size."""
    if method != "gptq":
        return {"method": method}
    rng = np.random.default_rng(columns)
    x = rng.normal(size=(4 * columns, columns // 4)) @ (rng.normal(size=(columns // 4, columns)))
    x = (x + 0.3 * rng.normal(size=x.shape)) * np.exp(rng.normal(size=columns))
    return {"method": method, "factors": gptq.factor(x.T @ x)}
