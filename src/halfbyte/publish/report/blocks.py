"""What a section is made of. All text is plain: the page escapes it and shows what would be hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from halfbyte.publish.evidence import PLACES, Evidence

NOT_MEASURED = "not measured"
Level = Literal["", "good", "note", "bad"]
MARKS = {"": "", "good": "✓", "note": "!", "bad": "✗"}  # no meaning by colour alone


@dataclass(frozen=True, slots=True)
class Say:
    """One sentence."""

    text: str
    level: Level = ""
    kind: Literal["say"] = "say"


@dataclass(frozen=True, slots=True)
class Missing:
    """What was not measured, why, and what to type to have it."""

    what: str
    why: str
    command: str
    kind: Literal["missing"] = "missing"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a caption; the columns whose names are in `numbers` are set to the right. The first names its row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[str] = frozenset()
    levels: Sequence[Level] = ()  # of the rows
    kind: Literal["table"] = "table"


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing that was made here, never one from a file."""

    caption: str
    drawing: Markup
    kind: Literal["figure"] = "figure"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a stranger, line for line."""

    title: str
    text: str
    kind: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class Fold:
    """Blocks that open on a click or a key; everything is there without a script."""

    summary: str
    blocks: Sequence[Block]
    level: Level = ""
    kind: Literal["fold"] = "fold"


Block = Say | Missing | Table | Figure | Text | Fold


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it."""

    name: str  # its anchor
    title: str
    blocks: Sequence[Block]


def missing(evidence: Evidence, kind: str, what: str) -> Missing:
    """Return why there is nothing of a kind, and the command."""
    return Missing(what, evidence.missing[kind].why, command_for(kind))


def command_for(kind: str) -> str:
    """Return what to type to have a kind of evidence: whoever reads the page has the folder under another name."""
    return PLACES[kind].command.format(out="OUT")


def told(value: Any, spec: str = "", unit: str = "") -> str:
    """Return a number in words; what is none was not measured."""
    if value is None:
        return NOT_MEASURED
    return f"{float(value):{spec}}{unit}" if spec else f"{value}{unit}"


def percent(value: Any) -> str:
    """Return a share."""
    return NOT_MEASURED if value is None else f"{100 * float(value):.1f} %"
