"""The source's own card, which `halfbyte quantize` copied: the licence and the names that it states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.publish.card.markdown import visible
from halfbyte.publish.card.reading import words
from halfbyte.source.foreign import plain_bytes

_MOST_NBYTES = 1 << 20
_BLOCK = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_HEADING = re.compile(r"^#[ \t]+(\S.*?)[ \t]*#*$", re.MULTILINE)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PLACE_OF_LICENSE = re.compile(r"https://[\w.-]+/[\w./%+-]*|[\w.-]+", re.ASCII)


def read_card(path: Path) -> tuple[Mapping[str, Any], str]:
    """Return the front matter and the first heading of a card; nothing where it has none that can be read."""
    import yaml  # noqa: PLC0415 - `halfbyte --help` stays instant

    try:
        text = plain_bytes(path)[:_MOST_NBYTES].decode("utf-8", errors="replace")
    except OSError:
        return {}, ""
    block = _BLOCK.match(text)
    found: Any = None
    try:
        # Aliases of aliases can fill the memory, and no card needs any.
        events = cast("Iterable[object]", yaml.parse(block[1], yaml.SafeLoader) if block else ())
        if block and not any(isinstance(event, yaml.AliasEvent) for event in events):
            found = yaml.safe_load(block[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    heading = _HEADING.search(text, block.end() if block else 0)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}, heading[1] if heading else ""


def hub_name(value: Any) -> str | None:
    """Return organisation/name where a value is one."""
    text = value if isinstance(value, str) else ""
    return text if _HUB_NAME.fullmatch(text) and ".." not in text else None


def license_place(front: Mapping[str, Any]) -> str | None:
    """Return the link to a licence, or the name of its file, where it is one of these."""
    found = words(front, "license_link")
    return found if found and _PLACE_OF_LICENSE.fullmatch(found) else None


def short(value: str | None) -> str | None:
    """Return a text of one line that can be a name."""
    text = " ".join(visible(value or "").split())
    return text[:120] or None
