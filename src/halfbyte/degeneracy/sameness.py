"""Find repetitive prose that is not an exact cycle.

There are two signs. Either the text compresses more than prose can, and nearly all of its end occurred many times
before: letters, forms and templates repeat a paragraph up to five times, a loop more often. Or it consists of a handful
of words.
"""

from __future__ import annotations

import zlib
from collections import Counter
from statistics import median

from halfbyte.degeneracy.units import (
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


def is_repetitive(window: str) -> bool:
    """Whether the end of a text, at most WINDOW characters, is repetitive."""
    data = window[-_COMPRESSED:].encode("utf-8", "replace")
    if len(data) < _FEWEST or not _compresses(data) or not is_prose(window):
        return False
    if _is_few_words(without_literals(window[-_OF_FEW_WORDS:])):
        return True
    tokens = words_and_numbers(without_literals(window))
    if tokens.count("0") > len(tokens) / 2:
        return False  # a table of numbers
    runs = [tuple(tokens[at : at + _RUN]) for at in range(len(tokens) - _RUN + 1)]
    return copies(runs) >= _COPIES and new_runs(runs) < _NEW_RUNS


def _compresses(data: bytes) -> bool:
    return len(data) > _COMPRESSION * len(zlib.compress(data))


def _is_few_words(text: str) -> bool:
    tokens = words_and_numbers(text)
    few = len(tokens) >= _FEWEST_WORDS and len(set(tokens)) < _DISTINCT_WORDS * len(tokens)
    return few and is_plain(text) and len(words(text)) > len(tokens) / 2


def copies(runs: list[tuple[str, ...]]) -> float:
    """Return the median number of occurrences of the runs at the end."""
    counts = Counter(runs)
    return median([counts[run] for run in runs[-_END:]] or [0])


def new_runs(runs: list[tuple[str, ...]]) -> float:
    """Return the share of runs at the end that do not occur before: a rhyme has new ones, a loop does not."""
    before = set(runs[:-_END])
    return sum(run not in before for run in runs[-_END:]) / max(1, len(runs[-_END:]))
