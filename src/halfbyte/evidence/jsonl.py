"""Append-only JSON Lines file with a single writer, safe against crashes.

API keys are removed from every line.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

from halfbyte.checkpoint.untrusted_files import parsed, plain_bytes
from halfbyte.endpoint.client import values_without_keys
from halfbyte.errors import MachineError, UsageError

_MOST_NBYTES = 1 << 32  # the file is read into memory; the largest so far has 0.3 GB
SYNC_EVERY = 32
SYNC_SECONDS = 5.0


class Lines:
    """A locked file open for appending. Subclasses implement `_remember` to index records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            fix = "wait for it to finish, or use another folder with -o"
            raise MachineError("another run is writing to this folder", where=str(path.parent), fix=fix) from None
        self.damaged = 0
        self._lock = threading.Lock()
        self._load()
        self._unsynced, self._synced_at = 0, time.monotonic()

    def _load(self) -> None:
        data = _all(self.path)
        complete = data.rfind(b"\n") + 1  # a killed run may have left a partial line
        if complete < len(data):
            self._file.truncate(complete)
        for line in data[:complete].splitlines():
            try:
                self._remember(parsed(line))
            except (ValueError, TypeError, LookupError, AttributeError):  # edited, or written by another program
                self.damaged += 1

    def _remember(self, record: dict[str, Any]) -> None:
        """Index a record that was read or added; raise an error if a field is missing."""
        raise NotImplementedError

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append a record from any thread, and return it without API keys, as a later run will read it.

        Lines are flushed immediately and synced to disk every SYNC_EVERY lines or SYNC_SECONDS.
        """
        record = values_without_keys(record)
        line = encoded(record)
        with self._lock:
            self._file.write(line)
            self._file.flush()
            self._remember(record)
            self._unsynced += 1
            if self._unsynced >= SYNC_EVERY or time.monotonic() - self._synced_at > SYNC_SECONDS:
                self.sync()
        return record

    def sync(self) -> None:
        """Sync all lines to disk."""
        os.fsync(self._file.fileno())
        self._unsynced, self._synced_at = 0, time.monotonic()

    def close(self) -> None:
        """Sync all lines to disk and release the lock."""
        self.sync()
        self._file.close()


def _open(path: Path) -> BinaryIO:
    """Open the file for appending, with O_NONBLOCK so that opening a pipe does not block."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _unusable(path, error.strerror) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unusable(path, "not a regular file")
    return open(descriptor, "ab")  # noqa: PTH123 - a descriptor, closed by `close`


def _all(path: Path) -> bytes:
    try:
        return plain_bytes(path, _MOST_NBYTES)
    except OSError as error:
        raise _unusable(path, error.strerror) from None


def _unusable(path: Path, why: str | None) -> UsageError:
    fix = "move it away, or use another folder with -o"
    return UsageError(f"cannot resume from this file: {why}", where=str(path), fix=fix)


def encoded(record: Any, indent: int | None = None) -> bytes:
    """Return a record as JSON with a newline, escaped to ASCII only if it is not valid UTF-8."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:  # an unpaired surrogate from a broken server
        text = json.dumps(record, indent=indent).encode()
    return text + b"\n"
