"""Offending texts: the place that is wrong, found and marked so that a reader sees it."""

from __future__ import annotations

import unicodedata

from halfbyte.validate.probe.answers import Answer
from halfbyte.validate.probe.degeneracy.defect import KindOfText, Severity
from halfbyte.validate.probe.degeneracy.find import find_defects
from halfbyte.validate.probe.kinds import Shown

OPEN, CLOSE = "⟦", "⟧"
AROUND = 60  # characters shown before and after a mark
LONGEST_MARK = 160
MOST_SHOWN = 5  # of a probe; the trace has all


def marked(shown: Shown) -> str:
    """Return one line: some text before, the wrong part in brackets, some text after."""
    start, end = max(0, shown.start), min(len(shown.text), max(shown.start, shown.end))
    before, wrong, after = shown.text[:start], shown.text[start:end], shown.text[end:]
    if len(wrong) > LONGEST_MARK:
        wrong = wrong[: LONGEST_MARK // 2] + " … " + wrong[-LONGEST_MARK // 2 :]
    before = ("…" if len(before) > AROUND else "") + before[-AROUND:]
    after = after[:AROUND] + ("…" if len(after) > AROUND else "")
    return visible(f"{before}{OPEN}{wrong}{CLOSE}{after}" if end > start else f"{before}{OPEN}{CLOSE}{after}")


def visible(text: str) -> str:
    """Spell out what a terminal would hide, or act on."""
    return "".join(
        one if one == " " or (one.isprintable() and unicodedata.category(one) not in {"Cf", "Cs"})
        else {"\n": "⏎", "\t": "⇥"}.get(one, f"\\u{{{ord(one):04X}}}")
        for one in text
    )  # fmt: skip


def first_difference(wanted: str, got: str, trace: str = "") -> Shown | None:
    """Show where two texts part, with the names of the characters: a Persian yeh looks like an Arabic one."""
    if wanted == got:
        return None
    at = next((i for i, (a, b) in enumerate(zip(wanted, got, strict=False)) if a != b), min(len(wanted), len(got)))
    expected, found = _named(wanted, at), _named(got, at)
    return Shown(got, f"{found} where {expected} belongs", at, min(at + 1, len(got)), trace)


def _named(text: str, at: int) -> str:
    if at >= len(text):
        return "the end"
    return f"U+{ord(text[at]):04X} {unicodedata.name(text[at], 'without a name')}"


def defects(answer: Answer, kind: KindOfText = "any") -> list[Shown]:
    """Return what no sound answer has: loops, broken characters, leaked markup, in content and reasoning."""
    return [
        Shown(text, f"{one.kind}: {one.detail}", one.start, one.end, answer.id)
        for text in (answer.text, answer.reasoning or "")
        for one in find_defects(text, kind_of_text=kind)
        if one.severity is Severity.HARD
    ]


def whole(answer: Answer, what: str) -> Shown:
    """Show an answer that is wrong as a whole."""
    text = answer.text or answer.reasoning or answer.error or ""
    return Shown(text, what, 0, len(text), answer.id)
