"""Remove local folders from texts that are published in the card and the report."""

from __future__ import annotations

import re
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
