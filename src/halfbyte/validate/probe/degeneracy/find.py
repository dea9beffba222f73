"""Every defect of a text, in the order of their places."""

from __future__ import annotations

import zlib
from collections import Counter

from halfbyte.validate.probe.degeneracy.characters import broken_characters
from halfbyte.validate.probe.degeneracy.defect import Defect, KindOfText, Severity
from halfbyte.validate.probe.degeneracy.markup import leaked_tokens
from halfbyte.validate.probe.degeneracy.scripts import script_drift
from halfbyte.validate.probe.degeneracy.watch import find_loop

_FEWEST_LINES = 8
_MOST_COPIED_LINES = 0.3
_LONG_LINE = 12  # characters; shorter ones, as a closing bracket, are copied in any text
_COMPRESSED_CHARACTERS = 1000
_MOST_COMPRESSION = 6.0


def find_defects(text: str, *, kind_of_text: KindOfText = "any", script: str | None = None) -> list[Defect]:
    """Return what is wrong with a text; `script` is the one that was asked for, as in `latin`, where it is known."""
    found = [*broken_characters(text), *leaked_tokens(text, kind_of_text), *script_drift(text, script)]
    loop = find_loop(text, kind_of_text)
    if loop is not None:
        kind = "repeated-character" if loop.rule == "character" else "loop"
        found.append(Defect(kind, loop.start, loop.end, loop.sentence))
    elif kind_of_text == "prose":  # both are true of any loop, and say less
        found += [*_copied_lines(text), *_compresses(text)]
    return sorted(found, key=lambda one: (one.start, one.end, one.kind))


def _copied_lines(text: str) -> list[Defect]:
    """Return the lines from the first copy of the most copied one to its last, where many lines are copies."""
    lines = [line.strip() for line in text.splitlines()]
    counts = Counter(line for line in lines if len(line) >= _LONG_LINE)
    copies = counts.total() - len(counts)
    if counts.total() < _FEWEST_LINES or copies <= _MOST_COPIED_LINES * counts.total():
        return []
    line, count = counts.most_common(1)[0]
    sentence = f"{copies} of {counts.total()} lines are copies; one stands there {count} times"
    return [Defect("copied-lines", text.find(line), text.rfind(line) + len(line), sentence, Severity.SOFT)]


def _compresses(text: str) -> list[Defect]:
    data = text.encode("utf-8", "replace")
    ratio = len(data) / len(zlib.compress(data))
    if len(data) < _COMPRESSED_CHARACTERS or ratio <= _MOST_COMPRESSION:
        return []
    sentence = f"it compresses {ratio:.1f}-fold, prose two- or threefold"
    return [Defect("compression", 0, len(text), sentence, Severity.SOFT)]
