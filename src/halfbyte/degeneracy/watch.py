"""Streaming loop detection.

Whether a text loops at a character depends only on the DEEP characters before it. The rules are applied every EVERY
characters, independent of the pieces in which the text arrives, and once more at its end. So the streaming watch and
the search in a complete text give the same result.

Loop check for prose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from halfbyte.degeneracy.rules import (
    WINDOW,
    Cycle,
    KindOfText,
    counting_cycle,
    is_repetitive,
    needed_cover,
    run_at_end,
    suffix_cycle,
)

EVERY = 64
_SELDOM = 4 * EVERY  # interval of the slower rules
_RARELY = 16 * EVERY  # interval of the search for long cycles
NEAR = 2048  # characters searched for cycles of words and sentences
DEEP = 12288  # characters searched for cycles of paragraphs
_SHOWN = 60
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in `text[start:end]`, detected at `end`."""

    rule: str  # "character", "cycle", "counting", "sameness"
    start: int
    end: int
    period: int | None  # characters, with whitespace collapsed; None without a fixed period
    unit: str  # repeated text, shortened

    @property
    def repeats(self) -> float | None:
        """Return the approximate number of repeats."""
        return None if self.period is None else (self.end - self.start) / self.period

    @property
    def sentence(self) -> str:
        """Return a description."""
        if self.rule == "sameness":
            return "the text repeats itself"
        counted = " with increasing numbers" if self.rule == "counting" else ""
        return f"{self.unit!r} is repeated{counted}, about {self.repeats:.0f} times"


class LoopWatch:
    """Detect loops in a text that arrives in pieces; keep only its last DEEP characters."""

    def __init__(self, kind: KindOfText = "any") -> None:
        self._kind: KindOfText = kind
        self._tail = ""
        self._read = 0
        self._checked = -1
        self._found: Loop | None = None

    def feed(self, piece: str) -> Loop | None:
        """Read the next piece; return the first loop found so far."""
        at = 0
        while at < len(piece) and self._found is None:
            step = EVERY - self._read % EVERY
            taken = piece[at : at + step]
            self._tail += taken
            self._read += len(taken)
            at += len(taken)
            if self._read % EVERY == 0:
                self._check(last=False)
        return self._found

    def end(self, *, cut: bool = False) -> Loop | None:
        """Check the end of the text; `cut`: the token limit cut it off."""
        if self._found is None:
            self._check(last=True, cut=cut)
        return self._found

    def _check(self, *, last: bool, cut: bool = False) -> None:
        if self._checked == self._read and not last:
            return
        self._checked = self._read
        self._tail = self._tail[-DEEP:]
        self._found = loop_at_end(self._tail, self._read, self._kind, last=last, cut=cut)


def find_loop(text: str, kind: KindOfText = "any", *, cut: bool = False) -> Loop | None:
    """Return the first loop of a complete text, as LoopWatch finds it; `cut`: the token limit ended the text."""
    watch = LoopWatch(kind)
    return watch.feed(text) or watch.end(cut=cut)


def loop_at_end(tail: str, read: int, kind: KindOfText, *, last: bool = False, cut: bool = False) -> Loop | None:
    """Return the loop at the end of a text of `read` characters, given at most its last DEEP characters.

    `last` applies every rule. With `cut` (the token limit ended the text), fewer copies at its end are a loop.
    """
    if cut and tail.endswith(_REPLACEMENT):  # the token limit split a character
        complete = tail.rstrip(_REPLACEMENT)
        tail, read = complete, read - len(tail) + len(complete)
    run = run_at_end(tail[-NEAR:], kind)
    if run:
        return Loop("character", read - run, read, 1, tail[-1])
    deep = last or read % _RARELY == 0
    near = tail if deep else tail[-NEAR:]
    collapsed = " ".join(near.split())
    cycle = suffix_cycle(collapsed, lambda unit: needed_cover(unit, kind, cut=cut))
    if cycle is not None:
        return _loop("cycle", near, collapsed, cycle, read)
    if not last and read % _SELDOM:
        return None
    cycle = counting_cycle(collapsed, kind, cut=cut)
    if cycle is not None:
        return _loop("counting", near, collapsed, cycle, read)
    window = tail[-WINDOW:]
    if kind in ("prose", "any") and is_repetitive(window):
        return Loop("sameness", read - len(window), read, None, "")
    return None


def _loop(rule: str, raw: str, collapsed: str, cycle: Cycle, read: int) -> Loop:
    at = len(collapsed) - cycle.covered
    unit = collapsed[at : at + cycle.period].strip()
    start = read - len(raw) + _raw_index(raw, at)
    return Loop(rule, start, read, cycle.period, unit if len(unit) <= _SHOWN else unit[: _SHOWN - 1] + "\u2026")


def _raw_index(raw: str, index: int) -> int:
    """Convert an index of the collapsed text to an index of the raw text."""
    at = 0
    for match in re.finditer(r"\S+", raw):
        size = match.end() - match.start()
        if index < at + size:
            return match.start() + max(0, index - at)
        at += size + 1
    return len(raw)


def has_loop(text: str, *, cut: bool = False) -> bool:
    """Return whether any rule finds a loop; `cut`: the token limit ended the text, not the model."""
    return find_loop(text, "prose", cut=cut) is not None
