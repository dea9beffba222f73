"""Number formatting for the card. Missing values become "not measured"."""

from __future__ import annotations

from halfbyte.evidence.folder import NOT_MEASURED

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


def counted(value: float | None) -> str:
    """Return a count."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,}" if isinstance(value, int) or not value.is_integer() else f"{int(value):,}"


def percent(value: float | None, *, decimals: int = 2) -> str:
    """Return a fraction as a percentage."""
    return NOT_MEASURED if value is None else f"{100 * value:.{decimals}f}%"


def points(value: float | None) -> str:
    """Return a signed difference in percentage points."""
    return NOT_MEASURED if value is None else f"{100 * value:+.2f} pp"


def figure(value: float | None, *, digits: int = 4) -> str:
    """Return a number with this many significant digits."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """Return seconds in milliseconds."""
    return NOT_MEASURED if value is None else f"{1000 * value:,.1f}"


def between(low: float, high: float) -> str:
    """Return an interval of differences in percentage points."""
    return f"{100 * low:+.2f} to {100 * high:+.2f}"


def p_value(value: float) -> str:
    """Return a p-value."""
    return f"{value:.2g}"
