"""Numbers as people say them."""

from __future__ import annotations

from typing import Literal

_SIZES = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
_COUNTS = {"T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3}


def size(nbytes: int) -> str:
    """Return bytes in gigabytes, as checkpoints are compared; small ones in smaller units."""
    unit = next((unit for unit, scale in _SIZES.items() if abs(nbytes) >= scale / 10), "kB")
    return f"{nbytes / _SIZES[unit]:,.1f} {unit}"


def count(number: int, decimals: int = 1, *, largest: Literal["T", "B"] = "T") -> str:
    """Return a number of parameters in trillions, billions or millions."""
    for unit, scale in _COUNTS.items():
        if number >= scale and (unit, largest) != ("T", "B"):
            return f"{number / scale:,.{decimals}f} {unit}"
    return str(number)
