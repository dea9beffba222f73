"""Building blocks of a section. All text is plain text; the page escapes it and spells out hidden characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from halfbyte.evidence.folder import NOT_MEASURED, Evidence
from halfbyte.evidence.record import Record

Level = Literal["", "good", "note", "bad"]
MARKS = {"": "", "good": "✓", "note": "!", "bad": "✗"}  # color alone carries no meaning


@dataclass(frozen=True, slots=True)
class Say:
    """One sentence."""

    text: str
    level: Level = ""
    kind: Literal["say"] = "say"


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing measurement, the reason, and the command that creates it."""

    what: str
    why: str
    command: str
    kind: Literal["missing"] = "missing"


@dataclass(frozen=True, slots=True)
class Table:
    """A captioned table. The first column is the row header; columns in `numbers` are right-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()
    levels: Sequence[Level] = ()  # of the rows
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Figure:
    """A generated drawing, never one from a file."""

    caption: str
    drawing: Markup
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True, slots=True)
class Text:
    """Untrusted text, with line breaks preserved."""

    title: str
    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that can be expanded without a script."""

    summary: str
    blocks: Sequence[Block]
    level: Level = ""
    kind: Literal["fold"] = "fold"


Block = Say | Missing | Table | Figure | Text | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its blocks."""

    name: str  # its anchor
    title: str
    blocks: Sequence[Block]


def missing(evidence: Evidence, kind: type[Record], what: str) -> Missing:
    """Return a block for missing evidence, with the reason and the command."""
    return Missing(what, evidence.missing[kind.kind].why, command_for(kind))


def command_for(kind: type[Record]) -> str:
    """Return the command that creates a kind of evidence, with OUT as a placeholder for the folder."""
    return kind.created_by.format(out="OUT")


def formatted(value: float | None, spec: str, unit: str = "") -> str:
    """Return a formatted number, or "not measured" for None."""
    return NOT_MEASURED if value is None else f"{value:{spec}}{unit}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage."""
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"
