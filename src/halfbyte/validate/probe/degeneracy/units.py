"""How often a thing must be repeated to be a loop: that depends on what it is.

People repeat rulers, empty cells and zeros hundreds of times, log lines a few times, a chorus three times in a song, a
paragraph in five letters, and no sentence six times in a row. The limits were chosen on the tuning part of the labelled
set only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from halfbyte.validate.probe.degeneracy.defect import KindOfText

# Chinese, Japanese, Korean: a character is about a token, where a Latin one is a third of it.
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
CJK_WEIGHT = 3
_CJK = re.compile(f"[{CJK}]")
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(rf"[^\W\d_{CJK}]{{2,}}|[{CJK}]")
_WORD_OR_NUMBER = re.compile(rf"[^\W{CJK}]+|[{CJK}]")
_PROSE_MARKS = " .,;:!?'()-\u2019\u2018\u201c\u201d\u2014\u2013\u2026\u3002\uff0c\u3001\uff01\uff1f\uff1a\uff1b"
_NOT_PROSE = re.compile(rf"[^\w{re.escape(_PROSE_MARKS)}]|[\d_]")
# What tables, rulers, numbers and drawings are made of.
_LITERALS = re.compile(r"\b(?:null|none|true|false|nan|yes|no|n/a)\b", re.IGNORECASE)
_CUT_WORD = re.compile(r"^\w+|\w+$")
_DRAWN = re.compile(r"[\d\s\-=_*#.~|+:,;/\\<>()\[\]{}'\"`^$%&@\u2500-\u25ff\u00b7\u2022]*")
_MOST_OTHER_MARKS = 0.1
_PLAIN_MARKS = re.compile(r"[^\w\s.,;:!?'-]|_")


class Stuff(Enum):
    """What a repeated unit is made of."""

    WORDS = "words"
    MARKUP = "markup"  # letters between brackets, quotes, signs: code, JSON, HTML
    DRAWN = "drawn"  # rulers, digits, cells
    NOISE = "noise"  # other signs, as !!!! and emoji


@dataclass(frozen=True, slots=True)
class Limit:
    """A loop covers at least so many characters with so many repeats."""

    characters: int
    repeats: int
    long_repeats: int  # of units of LONG characters and more: paragraphs, which letters and forms have up to five times


LONG = 250
ENOUGH = 10_000  # characters of copies to the letter, whatever their number: pages
FEWEST_REPEATS = 3  # of any loop
_STRICT = {  # for texts that may be anything
    Stuff.WORDS: Limit(300, 5, 6),
    Stuff.MARKUP: Limit(600, 6, 6),
    Stuff.DRAWN: Limit(1500, 16, 6),
    Stuff.NOISE: Limit(200, 10, 4),
}
_PROSE = {**_STRICT, Stuff.WORDS: Limit(200, 5, 6), Stuff.MARKUP: Limit(300, 5, 6), Stuff.DRAWN: Limit(300, 12, 4)}
_LIMITS: dict[KindOfText, dict[Stuff, Limit]] = {"prose": _PROSE, "code": _STRICT, "json": _STRICT, "any": _STRICT}


def stuff_of(unit: str) -> Stuff:
    """Say what a unit is made of."""
    whole = _CUT_WORD.sub("", 2 * unit) or unit  # a unit may begin inside a word
    bare = without_literals(whole)
    if not _LETTER.search(bare):
        return Stuff.DRAWN if _DRAWN.fullmatch(bare) else Stuff.NOISE
    return Stuff.WORDS if is_prose(unit) else Stuff.MARKUP


def without_literals(text: str) -> str:
    """Return a text whose null, true, no and the like are digits: they fill cells as numbers do."""
    return _LITERALS.sub("0", text)


def is_prose(text: str) -> bool:
    """Whether a text is words and their punctuation, but for a sign here and there."""
    return len(_NOT_PROSE.findall(text)) <= _MOST_OTHER_MARKS * len(text)


def is_plain(text: str) -> bool:
    """Whether a text is sentences, without brackets, quotes and signs, but for one here and there."""
    return len(_PLAIN_MARKS.findall(text)) <= _MOST_OTHER_MARKS / 3 * len(text)


def words(text: str) -> list[str]:
    """Return words of two letters and more; each Chinese, Japanese or Korean character is one."""
    return _WORD.findall(text)


def words_and_numbers(text: str) -> list[str]:
    """Return words and numbers of any length."""
    return _WORD_OR_NUMBER.findall(text)


def weight(text: str) -> int:
    """Return the length of a text as if it were Latin."""
    return len(text) + (CJK_WEIGHT - 1) * len(_CJK.findall(text))


def needed_cover(unit: str, kind: KindOfText) -> int:
    """Return how many characters a unit must fill, repeated, to be a loop."""
    limit = _LIMITS[kind][stuff_of(unit)]
    heavy = weight(unit)
    repeats = limit.long_repeats if heavy >= LONG else limit.repeats
    often = max(FEWEST_REPEATS * len(unit), min(repeats * len(unit), ENOUGH))
    return max(-(-limit.characters * len(unit) // heavy), often)
