r"""The one way from a value into Markdown: names, settings and answers of models are hostile text.

Templates are rendered so that every value is escaped unless it is `Markdown`, which only this module and `phrase` make.
No value can open a tag, a link, a code span, a heading or a table cell, turn the reading direction, or name a folder of
the machine that the card was made on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from halfbyte.publish.local_folders import without_folders

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CHARACTERS = 400  # of one value in a sentence or a cell
NOT_STATED = "not stated"
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL = re.compile(r"[\\`*\[\]|~$@]|://|\bwww\.|(?<![^\W_])_|_(?![^\W_])", re.IGNORECASE)
_STARTS_BLOCK = re.compile(r"[#+=:-]|\d+[.)](?=\s|$)")
_KEPT = ("Zs", "L", "M", "N", "P", "S")  # of Unicode's categories: what can be seen, and spaces
_IN_TEXT_ONLY = frozenset("`|<>&")  # what a code span cannot hold everywhere


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


def visible(text: str, *, lines: bool = False) -> str:
    """Return a text without what cannot be seen or turns the direction of others; as one line unless told."""
    kept: list[str] = []
    for character in text:
        category = unicodedata.category(character)
        if character == "\n" and lines:
            kept.append(character)
        elif character.isspace() or category in ("Zl", "Zp"):
            kept.append(" ")
        elif category.startswith(_KEPT):
            kept.append(character)
        else:
            kept.append(f"\\u{ord(character):04x}")
    return without_folders("".join(kept))


def inline(value: Any) -> Markdown:
    """Return a value as words of a sentence or a table's cell."""
    if isinstance(value, Markdown):
        return value
    if value is None:
        return Markdown(NOT_STATED)
    text = " ".join(visible(str(value)).split())
    if len(text) > MOST_CHARACTERS:
        text = text[: MOST_CHARACTERS - 1] + "…"
    text = _SPECIAL.sub(_escaped, text)
    return Markdown("".join(_HTML.get(character, character) for character in text))


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    if found == "://":
        return ":\\//"
    return found[:-1] + "\\." if found.endswith(".") else f"\\{found}"


def words_alone(value: Any) -> Markdown:
    """Return a value that may stand at the beginning of a line, where a dash would make a list of it."""
    if isinstance(value, Markdown):
        return value
    text = inline(value)
    found = _STARTS_BLOCK.match(text)
    return Markdown(f"{text[: found.end() - 1]}\\{text[found.end() - 1 :]}") if found else text


def code(value: Any) -> Markdown:
    """Return a name as code where it can be, in a table too; else as escaped words."""
    text = " ".join(visible(str(value)).split())
    if not text or len(text) > MOST_CHARACTERS or _IN_TEXT_ONLY & set(text):
        return inline(text)
    return Markdown(f"`{text}`")


def fenced(text: str, language: str = "") -> Markdown:
    """Return a block of code that nothing in it can end."""
    shown = visible(text, lines=True).strip("\n")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{shown}\n{fence}")


def phrase(sentence: str, *values: Any) -> Markdown:
    """Return a sentence of ours with values in its {}."""
    return Markdown(sentence.format(*(inline(value) for value in values)))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markdown:
    """Return a table of values."""
    lines = [head, ["---"] * len(head), *([inline(cell) for cell in row] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def bullets(values: Iterable[Any]) -> Markdown:
    """Return a list of sentences."""
    return Markdown("\n".join(f"- {words_alone(value)}" for value in values))


def box(kind: str, *paragraphs: Any) -> Markdown:
    """Return an alert as the Hub shows it; `kind` is WARNING, CAUTION or NOTE."""
    shown = "\n>\n".join(f"> {words_alone(one)}" for one in paragraphs)
    return Markdown(f"> [!{kind}]\n{shown}")


@cache
def environment() -> Environment:
    """Return Jinja with our templates, in which every value is escaped once."""
    import jinja2  # noqa: PLC0415 - only a card needs it

    return jinja2.Environment(
        loader=jinja2.PackageLoader("halfbyte.publish.card", "templates"),
        autoescape=False,  # which is for HTML; this is Markdown, and `finalize` sees every value
        finalize=words_alone,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,  # a line with a tag leaves an empty one, so that no paragraph runs into a table
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
