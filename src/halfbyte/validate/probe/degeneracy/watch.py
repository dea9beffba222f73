"""Loops in a text, found while it is written.

Whether a text loops at some character depends only on the characters before it, at most DEEP of them. It is asked every
EVERY characters, whatever the pieces are that the text comes in, and once more at its end. So the streaming watch and
the search in a whole text are the same thing, with the same answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from halfbyte.validate.probe.degeneracy.counting import counting_cycle
from halfbyte.validate.probe.degeneracy.cycle import Cycle, suffix_cycle
from halfbyte.validate.probe.degeneracy.defect import KindOfText
from halfbyte.validate.probe.degeneracy.runs import run_at_end
from halfbyte.validate.probe.degeneracy.sameness import WINDOW, says_the_same
from halfbyte.validate.probe.degeneracy.units import needed_cover

EVERY = 64
_SELDOM = 4 * EVERY  # what costs more is asked less often
_RARELY = 16 * EVERY
NEAR = 2048  # characters for cycles of words and sentences
DEEP = 12288  # for cycles of paragraphs
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Loop:
    """text[start:end] is the loop as far as it was read; it was noticed at `end`."""

    rule: str  # "character", "cycle", "counting", "sameness"
    start: int
    end: int
    period: int | None  # characters, white space collapsed; None where there is no fixed one
    unit: str  # what is repeated, cut

    @property
    def repeats(self) -> float | None:
        """Return about how often the unit stands there."""
        return None if self.period is None else (self.end - self.start) / self.period

    @property
    def sentence(self) -> str:
        """Say it to a person."""
        if self.rule == "sameness":
            return "the text says the same again and again"
        counted = " with numbers that go up" if self.rule == "counting" else ""
        return f"{self.unit!r} is repeated{counted}, about {self.repeats:.0f} times"


class LoopWatch:
    """Reads a text piece by piece and keeps no more than its last DEEP characters."""

    def __init__(self, kind: KindOfText = "any") -> None:
        self._kind: KindOfText = kind
        self._tail = ""
        self._read = 0
        self._checked = -1
        self._found: Loop | None = None

    def feed(self, piece: str) -> Loop | None:
        """Read on; return the first loop, also from every later call."""
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

    def end(self) -> Loop | None:
        """Say that the text has ended, and look at what was left."""
        if self._found is None:
            self._check(last=True)
        return self._found

    def _check(self, *, last: bool) -> None:
        if self._checked == self._read and not last:
            return
        self._checked = self._read
        self._tail = self._tail[-DEEP:]
        self._found = loop_at_end(self._tail, self._read, self._kind, last=last)


def find_loop(text: str, kind: KindOfText = "any") -> Loop | None:
    """Return the first loop of a whole text, as a LoopWatch finds it."""
    watch = LoopWatch(kind)
    return watch.feed(text) or watch.end()


def loop_at_end(tail: str, read: int, kind: KindOfText, *, last: bool = False) -> Loop | None:
    """Return the loop that a text of `read` characters is in, from at most DEEP of them; `last`: ask everything."""
    run = run_at_end(tail[-NEAR:])
    if run:
        return Loop("character", read - run, read, 1, tail[-1])
    deep = last or read % _RARELY == 0
    near = tail if deep else tail[-NEAR:]
    collapsed = " ".join(near.split())
    found = suffix_cycle(collapsed, lambda unit: needed_cover(unit, kind))
    if found is not None:
        return _loop("cycle", near, collapsed, found, read)
    if not last and read % _SELDOM:
        return None
    found = counting_cycle(collapsed, kind)
    if found is not None:
        return _loop("counting", near, collapsed, found, read)
    window = tail[-WINDOW:]
    if kind in ("prose", "any") and says_the_same(window):
        return Loop("sameness", read - len(window), read, None, "")
    return None


def _loop(rule: str, raw: str, collapsed: str, found: Cycle, read: int) -> Loop:
    place = len(collapsed) - found.covered
    unit = collapsed[place : place + found.period].strip()
    start = read - len(raw) + _raw_place(raw, place)
    return Loop(rule, start, read, found.period, unit if len(unit) <= _SHOWN else unit[: _SHOWN - 1] + "\u2026")


def _raw_place(raw: str, place: int) -> int:
    """Return where the character at a place of the collapsed text stands in the text itself."""
    at = 0
    for match in re.finditer(r"\S+", raw):
        size = match.end() - match.start()
        if place < at + size:
            return match.start() + max(0, place - at)
        at += size + 1
    return len(raw)
