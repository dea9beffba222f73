"""Mark the wrong part of an offending text."""

from __future__ import annotations

import unicodedata

from halfbyte.degeneracy.defects import Severity, find_defects
from halfbyte.degeneracy.rules import KindOfText
from halfbyte.probe.answers import Answer
from halfbyte.probe.kinds import Shown

OPEN, CLOSE = "⟦", "⟧"
AROUND = 60  # characters shown before and after a mark
LONGEST_MARK = 160
MOST_SHOWN = 5  # per probe; the trace has all


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
    """Escape characters that a terminal would hide or interpret."""
    return "".join(
        char if char == " " or (char.isprintable() and unicodedata.category(char) not in {"Cf", "Cs"})
        else {"\n": "⏎", "\t": "⇥"}.get(char, f"\\u{{{ord(char):04X}}}")
        for char in text
    )  # fmt: skip


def first_difference(right: str, got: str, trace: str = "") -> Shown | None:
    """Mark the first difference of two texts, with character names: a Persian yeh looks like an Arabic one."""
    if right == got:
        return None
    at = next((i for i, (a, b) in enumerate(zip(right, got, strict=False)) if a != b), min(len(right), len(got)))
    what = f"{_named(got, at)} instead of {_named(right, at)}"
    return Shown(got, what, at, min(at + 1, len(got)), trace)


def _named(text: str, at: int) -> str:
    if at >= len(text):
        return "the end"
    return f"U+{ord(text[at]):04X} {unicodedata.name(text[at], 'unnamed')}"


def defects(answer: Answer, kind: KindOfText = "any") -> list[Shown]:
    """Return defects that no healthy answer has, in content and reasoning."""
    return [
        Shown(text, f"{defect.kind}: {defect.detail}", defect.start, defect.end, answer.id)
        for name, text in answer.written
        for defect in find_defects(text, kind_of_text=kind, cut=answer.cut_in == name)
        if defect.severity is Severity.HARD
    ]


def whole(answer: Answer, what: str) -> Shown:
    """Mark a whole answer as wrong."""
    text = answer.text or answer.reasoning or answer.error or ""
    return Shown(text, what, 0, len(text), answer.id)
