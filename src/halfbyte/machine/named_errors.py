"""Errors of the operating system that name their file: what goes wrong with an open file says everything but that."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Generator[None]:
    """Give errors about an open file its path, so that whoever reads them looks at the right disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
