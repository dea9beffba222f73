"""A text that ends in one thing repeated: its longest suffix with a short period.

Such a suffix ends as it did one period before. So the last few characters are looked for further back, which is
quick, and each place where they are found is a period to try.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from halfbyte.validate.probe.degeneracy.units import FEWEST_REPEATS

_NEEDLE = 24
_MOST_TRIED = 64  # places; a period that repeats inside itself has many


@dataclass(frozen=True, slots=True)
class Cycle:
    """The last `covered` characters have this period."""

    period: int
    covered: int


def suffix_cycle(text: str, needed: Callable[[str], int]) -> Cycle | None:
    """Return the cycle with the shortest period that covers what its unit needs."""
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
            continue  # a glance, which spares most places the look at what the unit is
        cover = needed(text[size - period :])
        if cover <= size and _has_period(text, period, cover):
            return Cycle(period, _longest(text, period, cover))
    return None


def _has_period(text: str, period: int, covered: int) -> bool:
    """Whether the last `covered` characters are the same one period before."""
    start = len(text) - covered
    return text[start + period :] == text[start : len(text) - period]


def _longest(text: str, period: int, low: int) -> int:
    """Return how many characters at the end have a period that `low` of them have."""
    high = len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _has_period(text, period, middle) else (low, middle - 1)
    return low
