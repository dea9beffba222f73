"""Number formatting for the card. Missing or invalid values become "not measured"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfbyte.evidence.fields import number

NOT_MEASURED = "not measured"
_DECIMAL = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))
_BINARY = {"TB": (1 << 40, "TiB"), "GB": (1 << 30, "GiB"), "MB": (1 << 20, "MiB")}
_COUNTS = ((10**12, " T"), (10**9, " B"), (10**6, " M"))


def storage(nbytes: int) -> str:
    """Return a size in decimal and binary units, so that neither is mistaken for the other."""
    scale, unit = next(((scale, unit) for scale, unit in _DECIMAL if nbytes >= scale), _DECIMAL[-1])
    if unit == "TB":
        scale, unit = _DECIMAL[1]  # checkpoints are compared in gigabytes
    binary, binary_unit = _BINARY[unit]
    return f"{nbytes / scale:,.1f} {unit} ({nbytes / binary:,.1f} {binary_unit})"


def parameters(count: int) -> str:
    """Return a number of parameters, abbreviated and in full."""
    for scale, unit in _COUNTS:
        if count >= scale:
            return f"{count / scale:,.2f}{unit} ({count:,})"
    return f"{count:,}"


def counted(value: Any, *path: str | int) -> str:
    """Return a count."""
    parsed = number(value, *path)
    if parsed is None:
        return NOT_MEASURED
    return f"{parsed:,}" if isinstance(parsed, int) or not parsed.is_integer() else f"{int(parsed):,}"


def percent(value: Any, *path: str | int, decimals: int = 2) -> str:
    """Return a fraction as a percentage."""
    parsed = number(value, *path)
    return NOT_MEASURED if parsed is None else f"{100 * parsed:.{decimals}f}%"


def points(value: Any, *path: str | int) -> str:
    """Return a signed difference in percentage points."""
    parsed = number(value, *path)
    return NOT_MEASURED if parsed is None else f"{100 * parsed:+.2f} pp"


def figure(value: Any, *path: str | int, digits: int = 4) -> str:
    """Return a number with this many significant digits."""
    parsed = number(value, *path)
    return NOT_MEASURED if parsed is None else f"{parsed:,.{digits}g}" if abs(parsed) < 10**digits else f"{parsed:,.0f}"


def milliseconds(value: Any, *path: str | int) -> str:
    """Return seconds in milliseconds."""
    parsed = number(value, *path)
    return NOT_MEASURED if parsed is None else f"{1000 * parsed:,.1f}"


def between(ends: Sequence[Any], *, percents: bool = False, signed: bool = False) -> str:
    """Return an interval."""
    low, high = number(ends, 0), number(ends, 1)
    if low is None or high is None:
        return NOT_MEASURED
    if percents:
        return f"{100 * low:+.2f} to {100 * high:+.2f}" if signed else f"{100 * low:.2f} to {100 * high:.2f}"
    return f"{figure(low)} to {figure(high)}"


def p_value(value: Any, *path: str | int) -> str:
    """Return a p-value."""
    parsed = number(value, *path)
    return NOT_MEASURED if parsed is None else f"{parsed:.2g}"
