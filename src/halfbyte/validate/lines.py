"""A file of JSON lines that only grows: one writer, whole lines, and nothing lost when the run is killed.

Keys for servers are taken out of every line, whoever put them there.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from halfbyte.errors import MachineError
from halfbyte.validate.endpoint import values_without_keys

SYNC_EVERY = 32
SYNC_SECONDS = 5.0


class Lines:
    """The file, and the right to add to it; subclasses remember what they need of a record in `_remember`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
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
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1  # a run that was killed may have left half a line
        if whole < len(data):
            self._file.truncate(whole)
        for line in data[:whole].splitlines():
            try:
                self._remember(json.loads(line))
            except (ValueError, TypeError, LookupError):  # edited by hand, or another program's
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


def encoded(record: Any, indent: int | None = None) -> bytes:
    """Return JSON with a line's end, readable where UTF-8 can hold it."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=indent).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which a broken server can send
        text = json.dumps(record, indent=indent).encode()
    return text + b"\n"
