"""Find all defects of a text, sorted by position."""

from __future__ import annotations

import zlib
from collections import Counter

from halfbyte.degeneracy.characters import broken_characters
from halfbyte.degeneracy.defect import Defect, KindOfText, Severity
from halfbyte.degeneracy.markup import leaked_tokens
from halfbyte.degeneracy.scripts import script_drift
from halfbyte.degeneracy.watch import find_loop

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
