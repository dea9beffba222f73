"""Format and parse sizes, durations, counts and times."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Literal

from halfbyte.errors import UsageError

_SIZES = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
_TENTHS_BELOW_S = 10.0
_COUNTS = {"T": 10**12, "B": 10**9, "M": 10**6, "k": 10**3}


def timestamp() -> str:
    """Return the current time in UTC to the second, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def size(nbytes: int) -> str:
    """Format bytes in GB, below 1 GB in MB, below 1 MB in kB, below 1 kB in bytes."""
    unit = next((unit for unit, scale in _SIZES.items() if abs(nbytes) >= scale), None)
    if unit is None:
        return f"{nbytes} bytes"
    return f"{nbytes / _SIZES[unit]:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Format a duration, e.g. "4.2 s", "35 s", "2 min 05 s"."""
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def nbytes(text: str, where: str = "") -> int:
    """Parse `24GB`, `80 GiB` or a plain number into bytes. `where` names the option in the error."""
    units = {unit.lower(): scale for unit, scale in _SIZES.items()} | {"gib": 1 << 30, "mib": 1 << 20, "": 1, "b": 1}
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text, re.ASCII)
    if match is None or match[2].lower() not in units or not float(match[1]):
        raise UsageError(f"'{text}' is not a valid size", where=where, fix="use a size like 24GB")
    return int(float(match[1]) * units[match[2].lower()])


def count(number: int, decimals: int = 1, *, largest: Literal["T", "B"] = "T") -> str:
    """Format a number of parameters in trillions, billions, millions or thousands."""
    for unit, scale in _COUNTS.items():
        if number >= scale and (unit, largest) != ("T", "B"):
            return f"{number / scale:,.{decimals}f} {unit}"
    return str(number)
