"""The specification of a Ray run that every task receives, and the token that shows whether the run is still current.

The specification is small: paths on shared storage, the recipe, and the file stamps that the driver read. A worker
opens the source itself and must read the same stamps.

The token is in a file of the output folder. Ray stops the tasks of a dead driver, but not on nodes that it cannot
reach. So tasks check the token, and exit once a later run has removed or replaced it.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import PART, write_whole
from halfbyte.checkpoint.reader import ShardStamps
from halfbyte.engine.backends.ray.remote_source import RemoteSource

TOKEN = f"ray{PART}"  # in the output folder; every run, also a local one, first removes files with this suffix


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The specification of one run."""

    source: str
    remote: RemoteSource | None  # None: the source is a folder on shared storage
    out: str
    token: str
    version: str  # of halfbyte
    recipe: Mapping[str, Any]
    layers: int | None
    kept: Mapping[int, tuple[int, ...]] | None  # kept experts, if known before the run
    chosen: Mapping[int, tuple[int, ...]] | None  # kept experts, if selected during the run
    fingerprint: str
    seen: ShardStamps
    calibrated: bool  # whether scales come from the statistics in the output folder

    @property
    def token_file(self) -> Path:
        """Return the path of the token."""
        return Path(self.out) / TOKEN

    def is_current(self) -> bool:
        """Return whether this run still owns the output folder."""
        try:
            return self.token_file.read_text(encoding="utf-8") == self.token
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a transient storage error


@contextmanager
def claimed(out: Path) -> Generator[str]:
    """Claim an output folder with a new token, and remove the token on exit."""
    token = secrets.token_hex(8)
    file = out / TOKEN
    # Its temporary name has the same suffix as partial shards, so that the next run removes it after a kill.
    write_whole(file, token.encode())
    try:
        yield token
    finally:
        file.unlink(missing_ok=True)
