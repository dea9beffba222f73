"""Find broken characters: U+FFFD, mojibake, control characters and lone surrogates."""

from __future__ import annotations

import re

from halfbyte.degeneracy.defect import Defect

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
