"""What every task of a run is told, and how a task knows that its run goes on.

The order is small: paths on shared storage, the recipe, and what the driver saw there. A worker opens the source
itself, and must see the same.

A run has a token, in a file of its output folder. Ray ends the tasks of a dead driver; a node that Ray cannot reach
goes on. So a task looks for the token: once a later run has removed or replaced it, the task has no business there.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfbyte.distributed.elsewhere import Elsewhere
from halfbyte.source.read import Stamps
from halfbyte.write import PART, write_whole

TOKEN = f"ray{PART}"  # in the output folder; every run, local ones too, removes what ends so before it begins


@dataclass(frozen=True, slots=True)
class Order:
    """Of one run."""

    source: str
    elsewhere: Elsewhere | None  # where the source is no folder that all machines see
    out: str
    token: str
    version: str  # of halfbyte
    recipe: Mapping[str, Any]
    layers: int | None
    kept: Mapping[int, tuple[int, ...]] | None  # where it was known before the run
    chosen: Mapping[int, tuple[int, ...]] | None  # where it was chosen on the way
    fingerprint: str
    seen: Stamps
    given: bool  # whether scales come from the statistics in the output folder

    @property
    def token_file(self) -> Path:
        """Return where the token lies."""
        return Path(self.out) / TOKEN

    def goes_on(self) -> bool:
        """Whether the run that this order is of still owns the output folder."""
        try:
            return self.token_file.read_text(encoding="utf-8") == self.token
        except FileNotFoundError:
            return False
        except OSError:
            return True  # a storage that hiccups says nothing of the run


@contextmanager
def owning(out: Path) -> Generator[str]:
    """Own an output folder under a new token until the end, whatever the end is."""
    token = secrets.token_hex(8)
    file = out / TOKEN
    # Its temporary name ends as those of shards do, so that a kill between leaves nothing that is not removed.
    write_whole(file, token.encode())
    try:
        yield token
    finally:
        file.unlink(missing_ok=True)
