"""How far two block scales of the MSE sweep are apart, in the exact losses of the reference."""

import math
from typing import Any

from halfbyte.formats.reference.sweep import exact_losses


def relative_gap(block: Any, amax: float, code_a: int, code_b: int) -> float:
    """Return the difference of the exact losses of two scales relative to the larger; 0 is an exact tie."""
    losses = exact_losses(block, amax)
    a, b = losses[code_a - 1], losses[code_b - 1]
    return 0.0 if a == b else math.exp(math.log(abs(a - b)) - math.log(max(a, b)))
