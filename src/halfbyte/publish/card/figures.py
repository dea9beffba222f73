"""Numbers as the card prints them. What is no number is "not measured"; nothing is rounded twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfbyte.publish.card.reading import number

NOT_MEASURED = "not measured"
_DECIMAL = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))
_BINARY = {"TB": (1 << 40, "TiB"), "GB": (1 << 30, "GiB"), "MB": (1 << 20, "MiB")}
_COUNTS = ((10**12, " T"), (10**9, " B"), (10**6, " M"))


def storage(nbytes: int) -> str:
    """Return bytes in powers of ten and of two: a card that names one of them is read as the other."""
    scale, unit = next(((scale, unit) for scale, unit in _DECIMAL if nbytes >= scale), _DECIMAL[-1])
    if unit == "TB":
        scale, unit = _DECIMAL[1]  # checkpoints are compared in gigabytes
    binary, binary_unit = _BINARY[unit]
    return f"{nbytes / scale:,.1f} {unit} ({nbytes / binary:,.1f} {binary_unit})"


def parameters(count: int) -> str:
    """Return a number of parameters, short and whole."""
    for scale, unit in _COUNTS:
        if count >= scale:
            return f"{count / scale:,.2f}{unit} ({count:,})"
    return f"{count:,}"


def counted(value: Any, *path: str | int) -> str:
    """Return a count."""
    found = number(value, *path)
    if found is None:
        return NOT_MEASURED
    return f"{found:,}" if isinstance(found, int) or not found.is_integer() else f"{int(found):,}"


def percent(value: Any, *path: str | int, decimals: int = 2) -> str:
    """Return a share in percent."""
    found = number(value, *path)
    return NOT_MEASURED if found is None else f"{100 * found:.{decimals}f}%"


def points(value: Any, *path: str | int) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    found = number(value, *path)
    return NOT_MEASURED if found is None else f"{100 * found:+.2f} pp"


def figure(value: Any, *path: str | int, digits: int = 4) -> str:
    """Return a number with so many digits that count."""
    found = number(value, *path)
    return NOT_MEASURED if found is None else f"{found:,.{digits}g}" if abs(found) < 10**digits else f"{found:,.0f}"


def milliseconds(value: Any, *path: str | int) -> str:
    """Return seconds in milliseconds."""
    found = number(value, *path)
    return NOT_MEASURED if found is None else f"{1000 * found:,.1f}"


def between(ends: Sequence[Any], *, percents: bool = False, signed: bool = False) -> str:
    """Return an interval."""
    low, high = number(ends, 0), number(ends, 1)
    if low is None or high is None:
        return NOT_MEASURED
    if percents:
        return f"{100 * low:+.2f} to {100 * high:+.2f}" if signed else f"{100 * low:.2f} to {100 * high:.2f}"
    return f"{figure(low)} to {figure(high)}"


def p_value(value: Any, *path: str | int) -> str:
    """Return a probability."""
    found = number(value, *path)
    return NOT_MEASURED if found is None else f"{found:.2g}"
