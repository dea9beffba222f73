"""Location and size limit of the shard cache. Imports little, because every command that accepts addresses uses it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CACHE = "60GB"
CACHE_VARIABLE = "HALFBYTE_CACHE"


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache folder and the most bytes of shards it may hold."""

    folder: Path
    limit_nbytes: int


def default_folder() -> Path:
    """Return the default cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
