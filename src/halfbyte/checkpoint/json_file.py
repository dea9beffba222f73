"""Read optional JSON files that may be missing or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.untrusted_files import read_json


def json_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in a file; empty if the file is missing, invalid or not an object."""
    try:
        value: Any = read_json(path)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
