"""Minimum size of a loop, by kind of repeated unit.

People repeat rules, empty cells and zeros hundreds of times, log lines a few times, a chorus three times in a song and
a paragraph in five letters, but never a sentence six times in a row. The limits were tuned only on the tuning part of
the labeled set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from halfbyte.degeneracy.defect import KindOfText

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
