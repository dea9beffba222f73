"""Prose that says the same thing again and again without being a cycle to the letter.

Two signs. The text compresses more than prose can, and nearly all of its end stood there many times before: letters,
forms and templates have a paragraph three, four or five times over, a loop goes on. Or it is made of a handful of
words.
"""

from __future__ import annotations

import zlib
from collections import Counter
from statistics import median

from halfbyte.validate.probe.degeneracy.units import (
    is_plain,
    is_prose,
    without_literals,
    words,
    words_and_numbers,
)  # fmt: skip

WINDOW = 4096
_FEWEST = 500  # bytes
_COMPRESSED = 2000  # characters, the last ones
_COMPRESSION = 4.0
_RUN = 4  # words
_END = 120  # runs
_COPIES = 6
_NEW_RUNS = 0.12
_OF_FEW_WORDS = 1000  # characters
_FEWEST_WORDS = 80
_DISTINCT_WORDS = 0.08


def says_the_same(window: str) -> bool:
    """Whether the end of a text, at most WINDOW characters of it, goes round in circles."""
    data = window[-_COMPRESSED:].encode("utf-8", "replace")
    if len(data) < _FEWEST or not _compresses(data) or not is_prose(window):
        return False
    if _is_few_words(without_literals(window[-_OF_FEW_WORDS:])):
        return True
    found = words_and_numbers(without_literals(window))
    if found.count("0") > len(found) / 2:
        return False  # a table of numbers
    runs = [tuple(found[at : at + _RUN]) for at in range(len(found) - _RUN + 1)]
    return copies(runs) >= _COPIES and new_runs(runs) < _NEW_RUNS


def _compresses(data: bytes) -> bool:
    return len(data) > _COMPRESSION * len(zlib.compress(data))


def _is_few_words(text: str) -> bool:
    found = words_and_numbers(text)
    few = len(found) >= _FEWEST_WORDS and len(set(found)) < _DISTINCT_WORDS * len(found)
    return few and is_plain(text) and len(words(text)) > len(found) / 2


def copies(runs: list[tuple[str, ...]]) -> float:
    """Return how often a run of the end stands there, the median of these runs."""
    counts = Counter(runs)
    return median([counts[run] for run in runs[-_END:]] or [0])


def new_runs(runs: list[tuple[str, ...]]) -> float:
    """Return the share of runs at the end that the rest does not have: a rhyme goes on, a loop does not."""
    before = set(runs[:-_END])
    return sum(run not in before for run in runs[-_END:]) / max(1, len(runs[-_END:]))
