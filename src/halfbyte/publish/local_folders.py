"""Texts without the folders of the machine that they were written on: card and report are read elsewhere."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, cast

_ENDS = r"""\s/'"`,;|"""
# A slash that begins a word, and a folder at least before the name. `file://` is the one address that is a path.
_LOCAL_PATH = re.compile(rf"(?:file://(?=/)|(?<![\w.:/$}}\])<>*-])~?)/(?:[^{_ENDS}]+/)+([^{_ENDS}]*)")
_HOME = re.compile(r"/(?:home|Users)/[^/]+/?")  # whose last part is somebody's name
_BEGINS = ("/", "~/", "file:///")


def without_folders(text: str) -> str:
    """Return a text in which every path is an ellipsis and the last name."""
    return _LOCAL_PATH.sub(lambda found: "~" if _HOME.fullmatch(found[0]) else f"…/{found[1]}", text)


def names_only(value: Any) -> Any:
    """Return a value of a file with each text that is a path, spaces and all, as its last name."""
    if isinstance(value, dict):
        return {str(key): names_only(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [names_only(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, str) and value.startswith(_BEGINS):
        return "~" if _HOME.fullmatch(value) else PurePath(value).name
    return value
