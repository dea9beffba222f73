"""A file of JSON lines that only grows: one writer, whole lines, and nothing lost when the run is killed.

Keys for servers are taken out of every line, whoever put them there.
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

from halfbyte.errors import MachineError, UsageError
from halfbyte.source.foreign import parsed, plain_bytes
from halfbyte.validate.endpoint import values_without_keys

_MOST_NBYTES = 1 << 32  # of a trace, which is read whole; the longest so far has 0.3 GB
SYNC_EVERY = 32
SYNC_SECONDS = 5.0


class Lines:
    """The file, and the right to add to it; subclasses remember what they need of a record in `_remember`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            fix = "wait for it, or give another folder with -o"
            raise MachineError("another run writes into this folder", where=str(path.parent), fix=fix) from None
        self.damaged = 0
        self._lock = threading.Lock()
        self._load()
        self._unsynced, self._synced_at = 0, time.monotonic()

    def _load(self) -> None:
        data = _all(self.path)
        whole = data.rfind(b"\n") + 1  # a run that was killed may have left half a line
        if whole < len(data):
            self._file.truncate(whole)
        for line in data[:whole].splitlines():
            try:
                self._remember(parsed(line))
            except (ValueError, TypeError, LookupError, AttributeError):  # edited by hand, or another program's
                self.damaged += 1

    def _remember(self, record: dict[str, Any]) -> None:
        """Take note of a record that was read or added; one that lacks something is an error."""
        raise NotImplementedError

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append one line, from any thread, and return it as a later run reads it: without keys.

        It is on the disk after some more of them, or some seconds.
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
        """Bring every line to the disk."""
        os.fsync(self._file.fileno())
        self._unsynced, self._synced_at = 0, time.monotonic()

    def close(self) -> None:
        """Bring every line to the disk and let others write."""
        self.sync()
        self._file.close()


def _open(path: Path) -> BinaryIO:
    """Open the file to add to it; without O_NONBLOCK, opening a pipe waits until somebody reads from it."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _unfit(path, error.strerror) from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _unfit(path, "it is not a plain file")
    return open(opened, "ab")  # noqa: PTH123 - a descriptor, closed by `close`


def _all(path: Path) -> bytes:
    try:
        return plain_bytes(path, _MOST_NBYTES)
    except OSError as error:
        raise _unfit(path, error.strerror) from None


def _unfit(path: Path, why: str | None) -> UsageError:
    fix = "move it away, or give another folder with -o"
    return UsageError(f"this file cannot be gone on with: {why}", where=str(path), fix=fix)


def encoded(record: Any, indent: int | None = None) -> bytes:
    """Return JSON with a line's end, readable where UTF-8 can hold it."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a broken server can send
        text = json.dumps(record, indent=indent).encode()
    return text + b"\n"
