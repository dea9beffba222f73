"""Prose that says the same thing again and again without being a cycle to the letter.

Two signs. The text compresses more than prose can, and many of its eight-word runs are copies of earlier ones; or it
is long and made of a handful of words.
"""

from __future__ import annotations

import zlib

from halfbyte.validate.probe.degeneracy.units import is_prose, words

WINDOW = 1000
_FEWEST = 500  # bytes
_COMPRESSION = 5.0
_RUN = 8
_COPIED_RUNS = 0.35
_FEWEST_WORDS = 100
_DISTINCT_WORDS = 0.08


def says_the_same(window: str) -> bool:
    """Whether the end of a text, at most WINDOW characters of it, goes round in circles."""
    data = window.encode("utf-8", "replace")
    if len(data) < _FEWEST or len(data) <= _COMPRESSION * len(zlib.compress(data)) or not is_prose(window):
        return False
    found = words(window)
    if len(found) >= _FEWEST_WORDS and len(set(found)) < _DISTINCT_WORDS * len(found):
        return True
    return copied_runs(found) > _COPIED_RUNS


def copied_runs(found: list[str]) -> float:
    """Return the share of eight-word runs that stood there before."""
    runs = [tuple(found[at : at + _RUN]) for at in range(len(found) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0
