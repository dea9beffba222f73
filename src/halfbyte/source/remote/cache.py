"""Where what is fetched waits for its use. Light: every command that may be given an address asks for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CACHE = "60GB"
CACHE_VARIABLE = "HALFBYTE_CACHE"


@dataclass(frozen=True, slots=True)
class Cache:
    """Where shards wait for their use, and how many bytes of them there may be."""

    folder: Path
    limit_nbytes: int


def default_folder() -> Path:
    """Return where the cache lies if nobody says."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfbyte"
