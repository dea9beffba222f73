"""A JSON file beside the weights that may be missing or damaged: it only adds to what headers say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.source.foreign import read_json


def json_object(path: Path) -> Mapping[str, Any]:
    """Return what a file holds; nothing where it is not there, no longer JSON, or no object."""
    try:
        found: Any = read_json(path)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
