"""Find runs of one character, such as the "!!!!" (token 0) of a model whose logits are all equal.

People also write rules, digits and blanks, so those have higher limits.
"""

from __future__ import annotations

from halfbyte.degeneracy.defect import KindOfText
from halfbyte.degeneracy.units import UnitKind, unit_kind, weight

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
