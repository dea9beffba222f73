"""Prose that says the same thing again and again without being a cycle to the letter.

Two signs. The text compresses more than prose can, and many of its eight-word runs are copies of earlier ones; or it
is long and made of a handful of words.
"""

from __future__ import annotations

import zlib

from halfbyte.validate.probe.degeneracy.units import (
    is_plain,
    is_prose,
    without_literals,
    words,
    words_and_numbers,
)  # fmt: skip

WINDOW = 2000
_FEWEST = 500  # bytes
# Pairs of limits: the more it compresses, the fewer copied runs are enough.
_COMPRESSION, _COPIED_RUNS = 5.0, 0.35
_LESS_COMPRESSION, _MORE_COPIED_RUNS = 4.0, 0.5
_RUN = 8
_NEW_RUNS = 0.12
_FEWEST_WORDS = 100
_DISTINCT_WORDS = 0.08


def says_the_same(window: str) -> bool:
    """Whether the end of a text, at most WINDOW characters of it, goes round in circles."""
    data = window.encode("utf-8", "replace")
    ratio = len(data) / len(zlib.compress(data))
    if len(data) < _FEWEST or ratio <= _LESS_COMPRESSION or not is_prose(window):
        return False
    last = without_literals(window[-WINDOW // 2 :])
    if _is_few_words(last):
        return True
    found = words_and_numbers(without_literals(window))
    if found.count("0") > len(found) / 2:
        return False  # a table of numbers
    enough = _COPIED_RUNS if ratio > _COMPRESSION else _MORE_COPIED_RUNS
    return copied_runs(found) > enough and new_runs(found) < _NEW_RUNS


def _is_few_words(text: str) -> bool:
    found = words_and_numbers(text)
    few = len(found) >= _FEWEST_WORDS and len(set(found)) < _DISTINCT_WORDS * len(found)
    return few and is_plain(text) and len(words(text)) > len(found) / 2


def copied_runs(found: list[str]) -> float:
    """Return the share of eight-word runs that stood there before."""
    runs = _runs(found)
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def new_runs(found: list[str]) -> float:
    """Return the share of runs in the last third that the rest does not have: a rhyme goes on, a loop does not."""
    runs = _runs(found)
    cut = len(runs) - len(runs) // 3
    before = set(runs[:cut])
    return sum(run not in before for run in runs[cut:]) / max(1, len(runs) - cut)


def _runs(found: list[str]) -> list[tuple[str, ...]]:
    return [tuple(found[at : at + _RUN]) for at in range(len(found) - _RUN + 1)]
