"""A loop that counts: the same sentence again and again with a number that goes up.

Tables, logs and JSON differ in their numbers only as well. So this is for words alone, and for numbers that go up by
the same step each time.
"""

from __future__ import annotations

import re
from itertools import pairwise

from halfbyte.validate.probe.degeneracy.cycle import Cycle, suffix_cycle
from halfbyte.validate.probe.degeneracy.defect import KindOfText
from halfbyte.validate.probe.degeneracy.units import is_plain, needed_cover, words

_NUMBER = re.compile(r"\b\d+\b")  # by itself: user17 is a name
_REPEATS: dict[KindOfText, int] = {"prose": 6, "any": 8}
_WORDS_PER_NUMBER = 4  # else it is arithmetic
_LONGEST_NUMBER = 9
_MARK = "\x00"  # stands for a number
_FEWEST_ROWS = 2


def counting_cycle(text: str, kind: KindOfText) -> Cycle | None:
    """Return the cycle at the end of a text once its numbers are left out, in characters of that text."""
    if kind not in _REPEATS or not _NUMBER.search(text):
        return None
    plain = _NUMBER.sub(_MARK, text)

    def needed(unit: str) -> int:
        bare = unit.replace(_MARK, "")
        enough = _WORDS_PER_NUMBER * max(1, unit.count(_MARK))
        if _MARK not in unit or len(words(bare)) < enough or not is_plain(bare):
            return len(plain) + 1
        return max(needed_cover(bare, kind), _REPEATS[kind] * len(unit))

    found = suffix_cycle(plain, needed)
    if found is None:
        return None
    covered = _covered(text, found.covered)
    numbers = _NUMBER.findall(text[len(text) - covered :])
    columns = plain[len(plain) - found.period :].count(_MARK)
    return Cycle(found.period, covered) if _goes_up(numbers, columns) else None


def _covered(text: str, plain_covered: int) -> int:
    """Return how many characters became these many when each number became one character."""
    left, end = plain_covered, len(text)
    for match in reversed(list(_NUMBER.finditer(text))):
        between = end - match.end()
        if left <= between:
            return len(text) - end + left
        left -= between + 1
        end = match.start()
    return len(text) - end + left


def _goes_up(numbers: list[str], columns: int) -> bool:
    """Whether each column of numbers has one step, and one of them goes up. The first row may be cut, so it is left."""
    rows = len(numbers) // columns - 1
    if rows < _FEWEST_ROWS or any(len(number) > _LONGEST_NUMBER for number in numbers):
        return False
    values = [int(number) for number in numbers[-rows * columns :]]
    steps = [_steps(values[column::columns]) for column in range(columns)]
    return all(len(step) == 1 for step in steps) and any(min(step) > 0 for step in steps)


def _steps(values: list[int]) -> set[int]:
    return {after - before for before, after in pairwise(values)}
