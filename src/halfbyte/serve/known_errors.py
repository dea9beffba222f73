"""Engines' errors whose cause and remedy are known: the list is data/known_errors.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "data" / "known_errors.yaml"


@dataclass(frozen=True, slots=True)
class KnownError:
    """What an engine writes, why, and what helps; `seen` tells that a real engine was seen to write it."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    source: str
    seen: bool


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Read the list, in its order: special cases stand before general ones."""
    import yaml  # noqa: PLC0415 - only a failed start needs it

    rows: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["errors"]
    return tuple(KnownError(pattern=re.compile(row.pop("pattern")), **row) for row in rows)


def known_error(error: str, lines: Iterable[str] = ()) -> KnownError | None:
    """Return what is known of an error line, else of the first known line of the log."""
    found = _matching(error)
    return found or next((known for known in map(_matching, lines) if known is not None), None)


def _matching(line: str) -> KnownError | None:
    return next((known for known in known_errors() if known.pattern.search(line)), None)
