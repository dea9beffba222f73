"""Make texts safe to publish: without local folders, and with every character of untrusted text visible.

Untrusted text must not hide, reorder or imitate parts of a page. Templates escape HTML and Markdown; this module spells
out invisible and formatting characters: controls, direction marks, joiners, unpaired surrogates.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePath
from typing import Any, cast

_ENDS = r"""\s/'"`,;|"""
# A slash at the start of a word, with at least one folder before the name. `file://` URLs are paths too.
# Device nodes are the same on every machine, and `docker run --device` needs them.
_LOCAL_PATH = re.compile(rf"(?:file://(?=/)|(?<![\w.:/$}}\])<>*-])~?)(?!/dev/(?!shm/))/(?:[^{_ENDS}]+/)+([^{_ENDS}]*)")
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?")  # the last part is a user name
_PREFIXES = ("/", "~/", "file:///")


def without_folders(text: str) -> str:
    """Return a text with every path shortened to an ellipsis and the file name."""
    return _LOCAL_PATH.sub(lambda path: "~" if _HOME.fullmatch(path[0]) else f"…/{path[1]}", text)


def names_only(value: Any) -> Any:
    """Return a JSON value with every string that is a path reduced to its file name."""
    if isinstance(value, dict):
        return {str(key): names_only(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [names_only(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, str) and value.startswith(_PREFIXES):
        return "~" if _HOME.fullmatch(value) else PurePath(value).name
    return value


MOST_CHARACTERS = 4_000  # per text
_KEPT = {"\n", "\t"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_MOST_MARKS = 8  # consecutive combining marks; more would cover the surrounding lines


def visible(text: object, most: int = MOST_CHARACTERS, *, keep_paths: bool = False) -> str:
    """Return a text in which every character is visible; a long text is truncated with a note."""
    whole = str(text) if keep_paths else without_folders(str(text))
    shown: list[str] = []
    marks = 0
    for character in whole[:most]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in {"Mn", "Me"} else 0
        hide = marks > _MOST_MARKS or (category in _HIDDEN and character not in _KEPT)
        shown.append(f"⟨U+{ord(character):04X}⟩" if hide else character)
    if len(whole) > most:
        shown.append(f" … {len(whole) - most:,} more characters")
    return "".join(shown)
