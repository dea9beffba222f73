"""Read values from untrusted JSON. A missing value, or one of another type, is None or empty rather than an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

_MOST = 10**30  # larger numbers are not plausible measurements


def at(value: Any, *path: str | int) -> Any:
    """Follow keys and indexes into a value; None if the path does not exist."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(step)
        elif isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, str):
            sequence = cast("Sequence[Any]", value)
            value = sequence[step] if -len(sequence) <= step < len(sequence) else None
        else:
            return None
    return value


def mapping(value: Any, *path: str | int) -> Mapping[str, Any]:
    """Return an object; empty if there is none."""
    item = at(value, *path)
    return cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}


def items(value: Any, *path: str | int) -> list[Any]:
    """Return a list; empty if there is none."""
    item = at(value, *path)
    return list(cast("Sequence[Any]", item)) if isinstance(item, (list, tuple)) else []


def rows(value: Any, *path: str | int) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    return [cast("Mapping[str, Any]", row) for row in items(value, *path) if isinstance(row, Mapping)]


def number(value: Any, *path: str | int) -> float | None:
    """Return a finite number."""
    item = at(value, *path)
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return None
    return item if abs(item) < _MOST else None  # also rejects infinity and NaN


def whole(value: Any, *path: str | int) -> int | None:
    """Return an integer."""
    item = at(value, *path)
    return item if isinstance(item, int) and not isinstance(item, bool) and abs(item) < _MOST else None


def words(value: Any, *path: str | int) -> str | None:
    """Return a non-blank string."""
    item = at(value, *path)
    return item if isinstance(item, str) and item.strip() else None


def texts(value: Any, *path: str | int) -> list[str]:
    """Return the non-blank strings of a list."""
    return [text for text in items(value, *path) if isinstance(text, str) and text.strip()]
