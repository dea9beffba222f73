"""Add file names to OS errors: errors of open file descriptors have none."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Set `filename` on OSErrors that lack it, so that messages name the right disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
