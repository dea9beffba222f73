"""Find periodic suffixes: texts that end in one repeated unit.

A periodic suffix has the same last characters one period earlier. So earlier occurrences of the last few characters
are searched, which is fast, and each occurrence gives a candidate period.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halfbyte.degeneracy.units import FEWEST_REPEATS

_NEEDLE = 24
_MOST_TRIED = 64  # candidate periods; a unit that repeats inside itself has many


@dataclass(frozen=True, slots=True)
class Cycle:
    """The last `covered` characters have this period."""

    period: int
    covered: int


def suffix_cycle(text: str, needed: Callable[[str], int]) -> Cycle | None:
    """Return the cycle with the shortest period that covers at least `needed(unit)` characters."""
    size = len(text)
    if size <= _NEEDLE:
        return None
    needle = text[-_NEEDLE:]
    at = size - len(needle)
    for _ in range(_MOST_TRIED):
        at = text.rfind(needle, 0, at + len(needle) - 1)
        if at < 0:
            return None
        period = size - len(needle) - at
        if not _has_period(text, period, min(size, FEWEST_REPEATS * period)):
            continue  # cheap check before `needed`
        cover = needed(text[size - period :])
        if cover <= size and _has_period(text, period, cover):
            return Cycle(period, _longest(text, period, cover))
    return None


def _has_period(text: str, period: int, covered: int) -> bool:
    """Whether the last `covered` characters have this period."""
    start = len(text) - covered
    return text[start + period :] == text[start : len(text) - period]


def _longest(text: str, period: int, low: int) -> int:
    """Return the length of the longest suffix with this period; the last `low` characters have it."""
    high = len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _has_period(text, period, middle) else (low, middle - 1)
    return low
