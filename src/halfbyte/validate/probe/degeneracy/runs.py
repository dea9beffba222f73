"""One character again and again: "!!!!" is what a model writes whose every logit is the same, its token 0.

Rulers, digits and blanks are drawn by people too, so they must be much longer.
"""

from __future__ import annotations

from halfbyte.validate.probe.degeneracy.defect import KindOfText
from halfbyte.validate.probe.degeneracy.units import Stuff, stuff_of, weight

_LIMIT = {Stuff.WORDS: 200, Stuff.MARKUP: 200, Stuff.DRAWN: 1500, Stuff.NOISE: 80}
_DIGITS_IN_PROSE = 200  # a damaged model writes 1111 as readily as !!!!, and a story has no such number


def run_at_end(text: str, kind: KindOfText) -> int:
    """Return the length of the run of one character that a text ends in, or 0 where it is short enough."""
    if not text:
        return 0
    last = text[-1]
    length = len(text) - len(text.rstrip(last))
    limit = _DIGITS_IN_PROSE if kind == "prose" and last.isdigit() else _LIMIT[stuff_of(last)]
    return length if length * weight(last) >= limit else 0
