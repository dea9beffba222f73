"""Find all defects of a text: broken characters, leaked special tokens, script drift, loops."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from halfbyte.degeneracy.rules import KindOfText
from halfbyte.degeneracy.watch import find_loop


class Severity(Enum):
    """Whether one defect of this kind is enough to call an answer broken."""

    HARD = "hard"
    SOFT = "soft"  # good texts have it occasionally: used for rates, not for verdicts


@dataclass(frozen=True, slots=True)
class Defect:
    """`text[start:end]` is defective; `kind` is a label for tables, `detail` a sentence."""

    kind: str
    start: int
    end: int
    detail: str
    severity: Severity = Severity.HARD


# Broken characters
# UTF-8 read as Latin-1 or Windows-1252: the characters of a lead byte and its continuation bytes.
_CONTINUED = "\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013\u2014\u2018-\u201a\u201c-\u201e\u2020-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122"  # noqa: E501
_NAMED = 4  # characters listed in a message
_PATTERNS = {
    "replacement-character": (re.compile("\ufffd+"), "U+FFFD, the replacement for invalid bytes"),
    "lone-surrogate": (re.compile("[\ud800-\udfff]+"), "lone surrogate, which cannot be encoded"),
    "control-character": (
        re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f]+"), "control character"
    ),
    "mojibake": (
        re.compile(
            f"(?:\u00c3[{_CONTINUED}]|\u00c2[\u0080-\u00bf]|\u00e2[\u0080\u0082\u0084\u20ac\u201a\u201e][{_CONTINUED}]"
            f"|[\u00d0\u00d1][{_CONTINUED}](?:[\u00d0\u00d1][{_CONTINUED}])+|\u00ef\u00bb\u00bf"
            f"|[\u00e3-\u00e9][{_CONTINUED}]{{2}}(?:[\u00e2-\u00ef][{_CONTINUED}]{{2}})+|\u00f0\u0178[{_CONTINUED}]{{2}})+"
        ),
        "UTF-8 decoded as another encoding",
    ),
}  # fmt: skip


def broken_characters(text: str) -> list[Defect]:
    """Return each run of broken characters."""
    return [
        Defect(kind, match.start(), match.end(), f"{sentence}: {_code_points(match.group())}")
        for kind, (pattern, sentence) in _PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def _code_points(text: str) -> str:
    return " ".join(f"U+{ord(character):04X}" for character in text[:_NAMED]) + (" ..." if len(text) > _NAMED else "")


# Special tokens in an answer: parsed as text by the server, or spelled out by the model.

# Special tokens such as Kimi's <|im_end|> and <|tool_call_begin|>, DeepSeek's full-width ones, and [EOS].
_ALWAYS = re.compile(
    r"<\|[A-Za-z_][A-Za-z0-9_ .:-]{0,60}\|>|<\uff5c[^\n<>]{1,60}\uff5c>"
    r"|\[(?:EOS|BOS|PAD|UNK|EOT|SEP|CLS|MASK|INST|/INST)\]"
)
# Also used in HTML, XML and discussions of models: checked in prose only.
_IN_PROSE = re.compile(r"</?s>\s*$|<(?:eos|bos|pad|unk|eot)>|</?think>|</?tool_calls?>|</?tool_response>")


def leaked_tokens(text: str, kind: KindOfText = "any") -> list[Defect]:
    """Return each special token in a text."""
    patterns = (_ALWAYS, _IN_PROSE) if kind == "prose" else (_ALWAYS,)
    matches = [match for pattern in patterns for match in pattern.finditer(text)]
    return [
        Defect("special-token", match.start(), match.end(), f"special token {match.group().strip()} in the text")
        for match in matches
    ]


# Script drift: answers that slip into another script, and words that mix scripts.
#
# Names and quotations in another script are normal, more than a tenth of all letters is drift. A word that mixes
# Latin and Cyrillic letters is always wrong. Both defects are soft, because a text about Russian has them too.

SCRIPTS = {
    "latin": "A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff\uff21-\uff3a\uff41-\uff5a",
    "greek": "\u0370-\u03ff\u1f00-\u1fff",
    "cyrillic": "\u0400-\u052f\u1c80-\u1c8f\u2de0-\u2dff\ua640-\ua69f",
    "armenian": "\u0530-\u058f",
    "hebrew": "\u0590-\u05ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "devanagari": "\u0900-\u097f",
    "bengali": "\u0980-\u09ff",
    "tamil": "\u0b80-\u0bff",
    "thai": "\u0e00-\u0e7f",
    "georgian": "\u10a0-\u10ff",
    "hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "kana": "\u3040-\u30ff\u31f0-\u31ff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
}
_WRITTEN_TOGETHER = {"kana": ("han",), "hangul": ("han",)}  # Japanese and Korean use Chinese characters
MOST_FOREIGN = 0.10
FEWEST_FOREIGN = 12  # letters
_MATCHERS = {name: re.compile(f"[{letters}]+") for name, letters in SCRIPTS.items()}
_MIXED = re.compile(
    rf"[{SCRIPTS['latin']}]+[{SCRIPTS['cyrillic']}]+\w*|[{SCRIPTS['cyrillic']}]+[{SCRIPTS['latin']}]+\w*"
)
# Spaces, digits and punctuation between two words of one stretch.
_GAP = 3


def letters_by_script(text: str) -> dict[str, int]:
    """Return the number of letters of each script in a text."""
    counts = {name: sum(map(len, matcher.findall(text))) for name, matcher in _MATCHERS.items()}
    return {name: count for name, count in counts.items() if count}


def script_drift(text: str, script: str | None) -> list[Defect]:
    """Return the longest stretch of another script if there is too much of it, and all words of mixed scripts."""
    mixed = [
        Defect("mixed-script", match.start(), match.end(), "Latin and Cyrillic letters in one word", Severity.SOFT)
        for match in _MIXED.finditer(text)
    ]
    if script is None:
        return mixed
    if script not in SCRIPTS:
        raise ValueError(f"unknown script {script!r}; known: {', '.join(SCRIPTS)}")
    allowed = (script, *_WRITTEN_TOGETHER.get(script, ()))
    counts = letters_by_script(text)
    foreign = sum(count for name, count in counts.items() if name not in allowed)
    if foreign < FEWEST_FOREIGN or foreign <= MOST_FOREIGN * sum(counts.values()):
        return mixed
    start, end = _longest_stretch(text, [SCRIPTS[name] for name in counts if name not in allowed])
    share = foreign / sum(counts.values())
    other = max((count, name) for name, count in counts.items() if name not in allowed)[1]
    sentence = f"{share:.0%} of the letters are not {script}, most of them {other}"
    return [Defect("script-drift", start, end, sentence, Severity.SOFT), *mixed]


def _longest_stretch(text: str, letters: list[str]) -> tuple[int, int]:
    word = f"[{''.join(letters)}]+"
    stretches = re.finditer(rf"{word}(?:[\W\d]{{1,{_GAP}}}{word})*", text)
    return max((match.span() for match in stretches), key=lambda span: span[1] - span[0])


_FEWEST_LINES = 8
_MOST_COPIED_LINES = 0.3
_LONG_LINE = 12  # characters; shorter lines, such as a closing bracket, repeat in any text
_COMPRESSED_CHARACTERS = 1000
_MOST_COMPRESSION = 6.0


def find_defects(
    text: str, *, kind_of_text: KindOfText = "any", script: str | None = None, cut: bool = False
) -> list[Defect]:
    """Return the defects of a text.

    `script` is the expected script, such as `latin`, if known. `cut`: the token limit ended the text.
    """
    defects = [*broken_characters(text), *leaked_tokens(text, kind_of_text), *script_drift(text, script)]
    loop = find_loop(text, kind_of_text, cut=cut)
    if loop is not None:
        kind = "repeated-character" if loop.rule == "character" else "loop"
        defects.append(Defect(kind, loop.start, loop.end, loop.sentence))
    elif kind_of_text == "prose":  # every loop has both, and they are less specific
        defects += [*_copied_lines(text), *_compresses(text)]
    return sorted(defects, key=lambda defect: (defect.start, defect.end, defect.kind))


def _copied_lines(text: str) -> list[Defect]:
    """Return the range from the first to the last copy of the most copied line if many lines are copies."""
    lines = [line.strip() for line in text.splitlines()]
    counts = Counter(line for line in lines if len(line) >= _LONG_LINE)
    copies = counts.total() - len(counts)
    if counts.total() < _FEWEST_LINES or copies <= _MOST_COPIED_LINES * counts.total():
        return []
    line, count = counts.most_common(1)[0]
    sentence = f"{copies} of {counts.total()} lines are copies; one line occurs {count} times"
    return [Defect("copied-lines", text.find(line), text.rfind(line) + len(line), sentence, Severity.SOFT)]


def _compresses(text: str) -> list[Defect]:
    data = text.encode("utf-8", "replace")
    ratio = len(data) / len(zlib.compress(data))
    if len(data) < _COMPRESSED_CHARACTERS or ratio <= _MOST_COMPRESSION:
        return []
    sentence = f"compresses {ratio:.1f}-fold; ordinary prose compresses two- to threefold"
    return [Defect("compression", 0, len(text), sentence, Severity.SOFT)]
