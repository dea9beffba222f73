r"""Escape untrusted values (names, settings, model answers) for Markdown.

Templates escape every value that is not `Markdown`, which only this module creates. No value can open a tag, a link, a
code span, a heading or a table cell, change the text direction, or reveal a local path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from halfbyte.publish.visible_text import without_folders

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_CHARACTERS = 400  # of one value in a sentence or a cell
NOT_STATED = "not stated"
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_SPECIAL = re.compile(r"[\\`*\[\]|~$@]|://|\bwww\.|(?<![^\W_])_|_(?![^\W_])", re.IGNORECASE)
_STARTS_BLOCK = re.compile(r"[#+=:-]|\d+[.)](?=\s|$)")
_KEPT = ("Zs", "L", "M", "N", "P", "S")  # Unicode categories: visible characters and spaces
_IN_TEXT_ONLY = frozenset("`|<>&")  # characters that not every parser accepts in a code span


class Markdown(str):
    """Text that is already Markdown."""

    __slots__ = ()


def visible(text: str, *, lines: bool = False) -> str:
    """Return a text with invisible and bidirectional characters spelled out; one line unless `lines` is set."""
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
    """Return a value escaped for a sentence or a table cell."""
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
    matched = match[0]
    if matched == "://":
        return ":\\//"
    return matched[:-1] + "\\." if matched.endswith(".") else f"\\{matched}"


def words_alone(value: Any) -> Markdown:
    """Return a value escaped for the start of a line, where a dash would open a list."""
    if isinstance(value, Markdown):
        return value
    text = inline(value)
    block = _STARTS_BLOCK.match(text)
    return Markdown(f"{text[: block.end() - 1]}\\{text[block.end() - 1 :]}") if block else text


def code(value: Any) -> Markdown:
    """Return a name as a code span that is safe in tables, or as escaped text if it cannot be one."""
    text = " ".join(visible(str(value)).split())
    if not text or len(text) > MOST_CHARACTERS or _IN_TEXT_ONLY & set(text):
        return inline(text)
    return Markdown(f"`{text}`")


def code_in_table(value: Any) -> Markdown:
    r"""Return a name as a code span in a table cell, where `\|` is a bar.

    Parsers disagree on a backslash before a bar, so such a name becomes escaped text.
    """
    text = " ".join(visible(str(value)).split())
    if r"\|" in text or (_IN_TEXT_ONLY - {"|"}) & set(text) or len(text) > MOST_CHARACTERS:
        return inline(text)
    return Markdown("`" + text.replace("|", r"\|") + "`") if text else inline(text)


def fenced(text: str, language: str = "") -> Markdown:
    """Return a fenced code block whose fence is longer than any run of backticks in the text."""
    shown = visible(text, lines=True).strip("\n")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markdown(f"{fence}{language}\n{shown}\n{fence}")


def phrase(sentence: str, *values: Any) -> Markdown:
    """Return a trusted sentence with escaped values in place of each {}."""
    return Markdown(sentence.format(*(inline(value) for value in values)))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markdown:
    """Return a Markdown table with escaped cells."""
    lines = [head, ["---"] * len(head), *([inline(cell) for cell in row] for row in rows)]
    return Markdown("\n".join(f"| {' | '.join(cells)} |" for cells in lines))


def bullets(values: Iterable[Any]) -> Markdown:
    """Return a Markdown list."""
    return Markdown("\n".join(f"- {words_alone(value)}" for value in values))


def box(kind: str, *paragraphs: Any) -> Markdown:
    """Return an alert box for the Hub; `kind` is WARNING, CAUTION or NOTE."""
    body = "\n>\n".join(f"> {words_alone(paragraph)}" for paragraph in paragraphs)
    return Markdown(f"> [!{kind}]\n{body}")


@cache
def environment() -> Environment:
    """Return the Jinja environment of the card's templates, which escapes every value once."""
    import jinja2  # noqa: PLC0415 - only a card needs it

    return jinja2.Environment(
        loader=jinja2.PackageLoader("halfbyte.publish.card", "templates"),
        autoescape=False,  # autoescape is for HTML; `finalize` escapes every value for Markdown
        finalize=words_alone,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,  # a line with a tag leaves a blank line, which separates paragraphs from tables
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
