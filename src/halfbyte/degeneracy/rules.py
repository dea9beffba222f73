"""The four loop rules, each a function of the end of a text, and the minimum size of a loop by kind of repeated unit.

People repeat rules, empty cells and zeros hundreds of times, log lines a few times, a chorus three times in a song and
a paragraph in five letters, but never a sentence six times in a row. The limits were tuned only on the tuning part of
the labeled set.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import Literal

KindOfText = Literal["prose", "code", "json", "any"]

# Chinese, Japanese, Korean: one character is about one token, a Latin character a third of one.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
CJK_WEIGHT = 3
_CJK = re.compile(f"[{CJK}]")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(rf"[^\W\d_{CJK}]{{2,}}|[{CJK}]")
_WORD_OR_NUMBER = re.compile(rf"[^\W{CJK}]+|[{CJK}]")
_PROSE_MARKS = " .,;:!?'()-\u2019\u2018\u201c\u201d\u2014\u2013\u2026\u3002\uff0c\u3001\uff01\uff1f\uff1a\uff1b"
_NOT_PROSE = re.compile(rf"[^\w{re.escape(_PROSE_MARKS)}]|[\d_]")
# Content of tables, rules, numbers and drawings.
_LITERALS = re.compile(r"\b(?:null|none|true|false|nan|yes|no|n/a)\b", re.IGNORECASE)
_CUT_WORD = re.compile(r"^\w+|\w+$")
_DRAWN = re.compile(r"[\d\s\-=_*#.~|+:,;/\\<>()\[\]{}'\"`^$%&@\u2500-\u25ff\u00b7\u2022]*")
_MOST_OTHER_MARKS = 0.1
_PLAIN_MARKS = re.compile(r"[^\w\s.,;:!?'-]|_")


class UnitKind(Enum):
    """Kind of characters in a repeated unit."""

    WORDS = "words"
    MARKUP = "markup"  # letters between brackets, quotes and symbols: code, JSON, HTML
    DRAWN = "drawn"  # rules, digits, cells
    NOISE = "noise"  # other symbols, such as !!!! and emoji


@dataclass(frozen=True, slots=True)
class Limit:
    """Minimum number of characters and repeats of a loop."""

    characters: int
    repeats: int
    long_repeats: int  # of units with LONG characters or more: letters and forms repeat paragraphs up to five times


LONG = 250
ENOUGH = 10_000  # characters of exact copies: a loop at any number of repeats
FEWEST_REPEATS = 3  # of any loop
_STRICT = {  # for texts of unknown kind
    UnitKind.WORDS: Limit(300, 5, 6),
    UnitKind.MARKUP: Limit(600, 6, 6),
    UnitKind.DRAWN: Limit(1500, 16, 6),
    UnitKind.NOISE: Limit(200, 10, 4),
}
_PROSE = {
    **_STRICT,
    UnitKind.WORDS: Limit(200, 5, 6),
    UnitKind.MARKUP: Limit(300, 5, 6),
    UnitKind.DRAWN: Limit(300, 12, 4),
}
_LIMITS: dict[KindOfText, dict[UnitKind, Limit]] = {"prose": _PROSE, "code": _STRICT, "json": _STRICT, "any": _STRICT}
# If the token limit cuts a text inside a copy, fewer copies are a loop, because no other text followed them.
CUT_UNIT = 30  # characters of the shortest unit; shorter ones fill table rows
_CUT_COPIES: dict[KindOfText, int] = {"prose": 3, "code": 4, "json": 4, "any": 4}  # complete copies before the cut one
_CUT_CHARACTERS = {UnitKind.WORDS: 150, UnitKind.MARKUP: 300}  # of all copies together
_CUT_MARKUP_IN_PROSE = 240  # JSON has equal objects of this size
_CUT_SHORT_CHARACTERS = 160  # of all copies of a unit shorter than CUT_UNIT
_CUT_SHORT_COPIES = 6
_CUT_PARTIAL = 5  # characters of the incomplete last copy
_BLANK = re.compile(r"_{5}|\.{8}|\[ \]|\( \)")  # of a form, which is printed several times on a page


def unit_kind(unit: str) -> UnitKind:
    """Classify a unit."""
    whole = _CUT_WORD.sub("", 2 * unit) or unit  # a unit may start inside a word
    bare = without_literals(whole)
    if not _LETTER.search(bare):
        return UnitKind.DRAWN if _DRAWN.fullmatch(bare) else UnitKind.NOISE
    return UnitKind.WORDS if is_prose(unit) else UnitKind.MARKUP


def without_literals(text: str) -> str:
    """Replace null, true, no and similar words with digits: they fill cells as numbers do."""
    return _LITERALS.sub("0", text)


def is_prose(text: str) -> bool:
    """Whether a text is words and punctuation with few other symbols."""
    return len(_NOT_PROSE.findall(text)) <= _MOST_OTHER_MARKS * len(text)


def is_plain(text: str) -> bool:
    """Whether a text is sentences with few brackets, quotes and symbols."""
    return len(_PLAIN_MARKS.findall(text)) <= _MOST_OTHER_MARKS / 3 * len(text)


def words(text: str) -> list[str]:
    """Return the words of two or more letters; each Chinese, Japanese or Korean character is a word."""
    return _WORD.findall(text)


def words_and_numbers(text: str) -> list[str]:
    """Return words and numbers of any length."""
    return _WORD_OR_NUMBER.findall(text)


def weight(text: str) -> int:
    """Return the length of a text in Latin characters: a CJK character counts as three."""
    return len(text) + (CJK_WEIGHT - 1) * len(_CJK.findall(text))


def needed_cover(unit: str, kind: KindOfText, *, cut: bool = False) -> int:
    """Return how many characters copies of a unit must cover to be a loop; `cut`: the token limit ended the text."""
    content, size = unit_kind(unit), weight(unit)
    limit = _LIMITS[kind][content]
    repeats = limit.long_repeats if size >= LONG else limit.repeats
    by_repeats = max(FEWEST_REPEATS * len(unit), min(repeats * len(unit), ENOUGH))
    cover = max(-(-limit.characters * len(unit) // size), by_repeats)
    if cut and content is UnitKind.WORDS and size < CUT_UNIT and _is_primitive(unit):
        fewest = -(-_CUT_SHORT_CHARACTERS * len(unit) // size)
        return min(cover, max(fewest, _CUT_SHORT_COPIES * len(unit) + _CUT_PARTIAL))
    if cut and content in _CUT_CHARACTERS and size >= CUT_UNIT and _is_primitive(unit) and not _BLANK.search(2 * unit):
        prose_markup = kind == "prose" and content is UnitKind.MARKUP
        fewest = -(-(_CUT_MARKUP_IN_PROSE if prose_markup else _CUT_CHARACTERS[content]) * len(unit) // size)
        return min(cover, max(fewest, _CUT_COPIES[kind] * len(unit) + _CUT_PARTIAL))
    return cover


def _is_primitive(unit: str) -> bool:
    """Whether a unit is not a repetition of a shorter one."""
    return (2 * unit).find(unit, 1) == len(unit)


# Periodic suffixes: texts that end in one repeated unit.
#
# A periodic suffix has the same last characters one period earlier. So earlier occurrences of the last few characters
# are searched, which is fast, and each occurrence gives a candidate period.

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


# Counting loops: one sentence repeated with an increasing number.
#
# Tables, logs and JSON also differ only in their numbers. So this rule applies only to plain words with numbers that
# increase by a constant step.

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


# Repetitive prose that is not an exact cycle.
#
# There are two signs. Either the text compresses more than prose can, and nearly all of its end occurred many times
# before: letters, forms and templates repeat a paragraph up to five times, a loop more often. Or it consists of a
# handful of words.

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


# Runs of one character, such as the "!!!!" (token 0) of a model whose logits are all equal.
#
# People also write rules, digits and blanks, so those have higher limits.

_LIMIT = {UnitKind.WORDS: 200, UnitKind.MARKUP: 200, UnitKind.DRAWN: 1500, UnitKind.NOISE: 80}
_DRAWN_IN_PROSE = 200  # digits and whitespace: a damaged model writes 1111 as readily as !!!!, and prose has neither


def run_at_end(text: str, kind: KindOfText) -> int:
    """Return the length of the run of one character at the end of a text, or 0 if it is below the limit."""
    if not text:
        return 0
    last = text[-1]
    length = len(text) - len(text.rstrip(last))
    limit = _DRAWN_IN_PROSE if kind == "prose" and (last.isdigit() or last.isspace()) else _LIMIT[unit_kind(last)]
    return length if length * weight(last) >= limit else 0
