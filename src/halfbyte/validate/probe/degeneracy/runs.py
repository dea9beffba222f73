"""One character again and again: "!!!!" is what a model writes whose every logit is the same, its token 0.

Rulers, digits and blanks are drawn by people too, so they must be much longer.
"""

from __future__ import annotations

from halfbyte.validate.probe.degeneracy.units import Stuff, stuff_of, weight

_LIMIT = {Stuff.WORDS: 200, Stuff.MARKUP: 200, Stuff.DRAWN: 1500, Stuff.NOISE: 80}


def run_at_end(text: str) -> int:
    """Return the length of the run of one character that a text ends in, or 0 where it is short enough."""
    if not text:
        return 0
    last = text[-1]
    length = len(text) - len(text.rstrip(last))
    return length if length * weight(last) >= _LIMIT[stuff_of(last)] else 0
