"""Cache folders of Ray tasks that fetch their own shards. Each running task holds a lock on its folder.

The kernel releases a killed task's lock. Its folder is never resumed: the next run on the machine removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfbyte.checkpoint.remote.download import PARTS

TASKS = ".tasks"  # contains one folder per fetching task


@contextmanager
def swept(root: Path) -> Generator[None]:
    """Remove the folders of dead tasks; other processes cannot add or remove task folders in this context."""
    (root / TASKS).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / TASKS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for folder in (root / TASKS).iterdir():
            _remove_if_dead(folder)
        yield
    finally:
        os.close(descriptor)


def sweep(root: Path) -> None:
    """Remove the folders of dead tasks, if there are any."""
    if (root / TASKS).is_dir():
        with suppress(OSError), swept(root):  # the next run tries again
            pass


def _remove_if_dead(folder: Path) -> None:
    try:
        descriptor = os.open(folder / PARTS, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # killed before it took the lock, or during removal
        return shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return None  # state unknown: owned by another user, or too many open files
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # still running
    finally:
        os.close(descriptor)
