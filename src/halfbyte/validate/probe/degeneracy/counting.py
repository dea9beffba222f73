"""A loop that counts: the same sentence again and again with a number that goes up.

Tables, logs and JSON differ in their numbers only as well. So this is for words alone, and for numbers that go up by
the same step each time.
"""

from __future__ import annotations

import re

from halfbyte.validate.probe.degeneracy.cycle import Cycle, suffix_cycle
from halfbyte.validate.probe.degeneracy.defect import KindOfText
from halfbyte.validate.probe.degeneracy.units import Stuff, needed_cover, stuff_of, words

_NUMBER = re.compile(r"\d+")
_REPEATS: dict[KindOfText, int] = {"prose": 6, "any": 8}
_FEWEST_WORDS = 4
_LONGEST_NUMBER = 9


def counting_cycle(text: str, kind: KindOfText) -> Cycle | None:
    """Return the cycle at the end of a text once its numbers are left out, in characters of that text."""
    if kind not in _REPEATS or not _NUMBER.search(text):
        return None
    plain = _NUMBER.sub("0", text)

    def needed(unit: str) -> int:
        bare = unit.replace("0", "")
        if "0" not in unit or len(words(bare)) < _FEWEST_WORDS or stuff_of(bare) is not Stuff.WORDS:
            return len(plain) + 1
        return max(needed_cover(bare, kind), _REPEATS[kind] * len(unit))

    found = suffix_cycle(plain, needed)
    if found is None:
        return None
    covered = _covered(text, found.covered)
    numbers = _NUMBER.findall(text[len(text) - covered :])
    columns = plain[len(plain) - found.period :].count("0")
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
    if rows < 2 or any(len(number) > _LONGEST_NUMBER for number in numbers):
        return False
    values = [int(number) for number in numbers[-rows * columns :]]
    steps = [
        {b - a for a, b in zip(row, row[1:], strict=False)} for row in (values[c::columns] for c in range(columns))
    ]
    return all(len(step) == 1 for step in steps) and any(min(step) > 0 for step in steps)
