"""Values out of files that anybody may have written: what is not there, or of another kind, is None and no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

_MOST = 10**30  # more is no measurement, and no float holds it


def at(value: Any, *path: str | int) -> Any:
    """Follow keys and positions into a value; None where the way ends."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = cast("Mapping[str, Any]", value).get(step)
        elif isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, str):
            found = cast("Sequence[Any]", value)
            value = found[step] if -len(found) <= step < len(found) else None
        else:
            return None
    return value


def mapping(value: Any, *path: str | int) -> Mapping[str, Any]:
    """Return an object; an empty one where there is none."""
    found = at(value, *path)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def items(value: Any, *path: str | int) -> list[Any]:
    """Return a list; an empty one where there is none."""
    found = at(value, *path)
    return list(cast("Sequence[Any]", found)) if isinstance(found, (list, tuple)) else []


def rows(value: Any, *path: str | int) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    return [cast("Mapping[str, Any]", row) for row in items(value, *path) if isinstance(row, Mapping)]


def number(value: Any, *path: str | int) -> float | None:
    """Return a finite number."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    return found if abs(found) < _MOST else None  # which infinity and NaN are not


def whole(value: Any, *path: str | int) -> int | None:
    """Return a whole number."""
    found = at(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) and abs(found) < _MOST else None


def words(value: Any, *path: str | int) -> str | None:
    """Return a text that says something."""
    found = at(value, *path)
    return found if isinstance(found, str) and found.strip() else None


def texts(value: Any, *path: str | int) -> list[str]:
    """Return the texts of a list."""
    return [text for text in items(value, *path) if isinstance(text, str) and text.strip()]
