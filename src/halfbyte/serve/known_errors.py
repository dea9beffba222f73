"""Known engine errors with their causes and fixes, from data/known_errors.yaml."""

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
    """An error's pattern, cause and fix; `seen` marks errors that a real engine wrote in one of our runs."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    source: str
    seen: bool


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Read the list in order: special cases come before general ones."""
    import yaml  # noqa: PLC0415 - needed only after a failed start

    rows: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["errors"]
    return tuple(KnownError(pattern=re.compile(row.pop("pattern")), **row) for row in rows)


def known_error(error: str, lines: Iterable[str] = ()) -> KnownError | None:
    """Return the known error that matches an error line, else the first one that matches a line of the log."""
    match = _matching(error)
    return match or next((known for known in map(_matching, lines) if known is not None), None)


def _matching(line: str) -> KnownError | None:
    return next((known for known in known_errors() if known.pattern.search(line)), None)
