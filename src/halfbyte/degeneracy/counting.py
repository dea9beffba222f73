"""Find counting loops: one sentence repeated with an increasing number.

Tables, logs and JSON also differ only in their numbers. So this rule applies only to plain words with numbers that
increase by a constant step.
"""

from __future__ import annotations

import re
from itertools import pairwise

from halfbyte.degeneracy.cycle import Cycle, suffix_cycle
from halfbyte.degeneracy.defect import KindOfText
from halfbyte.degeneracy.units import (
    CUT_UNIT,
    is_plain,
    needed_cover,
    weight,
    words,
)

_NUMBER = re.compile(r"\b\d+\b")  # standalone: user17 is a name
_REPEATS: dict[KindOfText, int] = {"prose": 6, "any": 8}
_CUT_REPEATS: dict[KindOfText, int] = {"prose": 4, "any": 5}  # in a text cut by the token limit
_WORDS_PER_NUMBER = 4  # fewer words are arithmetic
_LONGEST_NUMBER = 9
_MARK = "\x00"  # placeholder for a number
_FEWEST_ROWS = 2


def counting_cycle(text: str, kind: KindOfText, *, cut: bool = False) -> Cycle | None:
    """Return the cycle at the end of a text with its numbers masked, measured in characters of the original text.

    `cut`: the token limit ended the text.
    """
    if kind not in _REPEATS or not _NUMBER.search(text):
        return None
    masked = _NUMBER.sub(_MARK, text)

    def needed(unit: str) -> int:
        bare = unit.replace(_MARK, "")
        needed_words = _WORDS_PER_NUMBER * max(1, unit.count(_MARK))
        if _MARK not in unit or len(words(bare)) < needed_words or not is_plain(bare):
            return len(masked) + 1
        cover = max(needed_cover(bare, kind), _REPEATS[kind] * len(unit))
        if cut and weight(bare) >= CUT_UNIT:
            return min(cover, _CUT_REPEATS[kind] * len(unit))
        return cover

    cycle = suffix_cycle(masked, needed)
    if cycle is None:
        return None
    covered = _covered(text, cycle.covered)
    numbers = _NUMBER.findall(text[len(text) - covered :])
    columns = masked[len(masked) - cycle.period :].count(_MARK)
    return Cycle(cycle.period, covered) if _counts_up(numbers, columns) else None


def _covered(text: str, masked_covered: int) -> int:
    """Convert the length of a suffix of the masked text to the length of the same suffix of the original text."""
    left, end = masked_covered, len(text)
    for match in reversed(list(_NUMBER.finditer(text))):
        between = end - match.end()
        if left <= between:
            return len(text) - end + left
        left -= between + 1
        end = match.start()
    return len(text) - end + left


def _counts_up(numbers: list[str], columns: int) -> bool:
    """Whether every column has a constant step and one increases. The first row may be cut, so it is skipped."""
    rows = len(numbers) // columns - 1
    if rows < _FEWEST_ROWS or any(len(number) > _LONGEST_NUMBER for number in numbers):
        return False
    values = [int(number) for number in numbers[-rows * columns :]]
    steps = [_steps(values[column::columns]) for column in range(columns)]
    return all(len(step) == 1 for step in steps) and any(min(step) > 0 for step in steps)


def _steps(values: list[int]) -> set[int]:
    return {after - before for before, after in pairwise(values)}
