"""Find script drift: answers that slip into another script, and words that mix scripts.

Names and quotations in another script are normal, more than a tenth of all letters is drift. A word that mixes Latin
and Cyrillic letters is always wrong. Both defects are soft, because a text about Russian has them too.
"""

from __future__ import annotations

import re

from halfbyte.degeneracy.defect import Defect, Severity

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
