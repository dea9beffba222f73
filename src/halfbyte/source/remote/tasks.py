"""Folders of tasks that fetch for themselves, beside the shards of a source: who has one holds its lock.

A killed task's lock dies with it, and nobody goes on with what it has fetched: whoever comes next on the machine, with
many machines or alone, removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfbyte.source.remote.download import PARTS

TASKS = ".tasks"  # beside the small files: a folder for each task that fetches


@contextmanager
def swept(root: Path) -> Generator[None]:
    """Remove what tasks have left that do not run any more; meanwhile nobody else removes or makes a folder here."""
    (root / TASKS).mkdir(parents=True, exist_ok=True)
    held = os.open(root / TASKS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        for folder in (root / TASKS).iterdir():
            _remove_if_left(folder)
        yield
    finally:
        os.close(held)


def sweep(root: Path) -> None:
    """Remove what tasks have left that do not run any more, if there ever were some."""
    if (root / TASKS).is_dir():
        with suppress(OSError), swept(root):  # who comes next tries again
            pass


def _remove_if_left(folder: Path) -> None:
    try:
        held = os.open(folder / PARTS, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # killed before it had a lock, or while it was removed
        return shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return None  # nobody can tell whether it runs: another user's, or too many files are open
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # it runs
    finally:
        os.close(held)
