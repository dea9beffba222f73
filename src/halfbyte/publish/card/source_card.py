"""Read the license and names from the source's card, which `halfbyte quantize` copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.untrusted_files import plain_bytes
from halfbyte.evidence.fields import words
from halfbyte.publish.card.markdown import visible

_MOST_NBYTES = 1 << 20
_BLOCK = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_HEADING = re.compile(r"^#[ \t]+(\S.*?)[ \t]*#*$", re.MULTILINE)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_UNSTATED = (("base_model", "base model", "--base-model ORG/NAME"), ("quantized_by", "maker", "--quantized-by NAME"))
_LICENSE_LINK = re.compile(r"https://[\w.-]+/[\w./%+-]*|[\w.-]+", re.ASCII)


def read_card(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the front matter and the first heading of a card; empty if missing or unreadable."""
    import yaml  # noqa: PLC0415 - `halfbyte --help` stays instant

    try:
        text = plain_bytes(path)[:_MOST_NBYTES].decode("utf-8", errors="replace")
    except OSError:
        return {}, ""
    block = _BLOCK.match(text)
    front: Any = None
    try:
        # Nested aliases can exhaust memory, and no card needs aliases.
        events = cast("Iterable[object]", yaml.parse(block[1], yaml.SafeLoader) if block else ())
        if block and not any(isinstance(event, yaml.AliasEvent) for event in events):
            front = yaml.safe_load(block[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        front = None
    heading = _HEADING.search(text, block.end() if block else 0)
    return cast("Mapping[str, Any]", front) if isinstance(front, dict) else {}, heading[1] if heading else ""


def unstated(front: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields missing from a card's front matter, each with the `halfbyte card` option that sets it."""
    return [(field, option) for key, field, option in _UNSTATED if not front.get(key)]


def hub_name(value: Any) -> str | None:
    """Return a value if it is a valid organization/name, else None."""
    text = value if isinstance(value, str) else ""
    return text if _HUB_NAME.fullmatch(text) and ".." not in text else None


def repository_name(text: str) -> str:
    """Return a text as a valid repository name: ASCII letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:96].strip("-._")


def license_place(front: Mapping[str, Any]) -> str | None:
    """Return the license link if it is an HTTPS URL or a file name."""
    link = words(front, "license_link")
    return link if link and _LICENSE_LINK.fullmatch(link) else None


def short(value: str | None) -> str | None:
    """Return a text as a single line of at most 120 characters, or None if it is blank."""
    text = " ".join(visible(value or "").split())
    return text[:120] or None
