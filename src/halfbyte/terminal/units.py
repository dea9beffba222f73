"""Numbers as people say them."""

from __future__ import annotations

import re
from typing import Literal

from halfbyte.errors import UsageError

_SIZES = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
_COUNTS = {"T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3}


def size(nbytes: int) -> str:
    """Return bytes in gigabytes, as checkpoints are compared; small ones in smaller units."""
    unit = next((unit for unit, scale in _SIZES.items() if abs(nbytes) >= scale / 10), "kB")
    return f"{nbytes / _SIZES[unit]:,.1f} {unit}"


def nbytes(text: str, where: str = "") -> int:
    """Return the bytes that `24GB`, `80 GiB` or a plain number mean; `where` is the option that has it."""
    units = {unit.lower(): scale for unit, scale in _SIZES.items()} | {"gib": 1 << 30, "mib": 1 << 20, "": 1, "b": 1}
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    if match is None or match[2].lower() not in units or not float(match[1]):
        raise UsageError(f"'{text}' is no number of bytes", where=where, fix="write it like 24GB")
    return int(float(match[1]) * units[match[2].lower()])


def count(number: int, decimals: int = 1, *, largest: Literal["T", "B"] = "T") -> str:
    """Return a number of parameters in trillions, billions or millions."""
    for unit, scale in _COUNTS.items():
        if number >= scale and (unit, largest) != ("T", "B"):
            return f"{number / scale:,.{decimals}f} {unit}"
    return str(number)
