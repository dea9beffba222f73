"""Every finished request, one line each, in a file that only grows; a killed run reads it again and repeats nothing.

A request is found again by everything that could change its answer: the address, the model's name, the fingerprint of
what is served there, suite, task, seed, item, and the bytes that were sent. lm-eval's own cache knows only the last.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.errors import MachineError

SYNC_EVERY = 32
SYNC_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Scope:
    """What a run of one task asks, and whom."""

    url: str
    model: str
    fingerprint: str
    suite: str
    task: str
    seed: int


def request_key(scope: Scope, item: tuple[str, int, int], payload: Any) -> str:
    """Return the name of a request: equal names have equal answers, but for a server's own noise."""
    whole = [asdict(scope), list(item), payload]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class Store:
    """The file, what it holds, and the right to add to it."""

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
        self.endpoints: list[dict[str, Any]] = []
        self.damaged = 0
        self._answers: dict[str, dict[str, Any]] = {}
        self._load()
        self._unsynced, self._synced_at = 0, time.monotonic()

    def _load(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1  # a run that was killed may have left half a line
        if whole < len(data):
            self._file.truncate(whole)
        for line in data[:whole].splitlines():
            try:
                record: Any = json.loads(line)
                if record["kind"] == "endpoint":
                    self.endpoints.append({key: record[key] for key in ("kind", "fingerprint", "stable", "probes")})
                elif record["error"] is None:  # what failed is asked again
                    self._answers[record["key"]] = {**record, "answer": record["answer"]}
            except (ValueError, TypeError, LookupError):
                self.damaged += 1

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the finished request of that name."""
        return self._answers.get(key)

    def add(self, record: dict[str, Any]) -> None:
        """Append one line; it is on the disk after some more of them, or some seconds."""
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        if record.get("kind") == "endpoint":
            self.endpoints.append(record)
        elif record.get("error") is None:
            self._answers[record["key"]] = record
        self._unsynced += 1
        if self._unsynced >= SYNC_EVERY or time.monotonic() - self._synced_at > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Bring every line to the disk."""
        os.fsync(self._file.fileno())
        self._unsynced, self._synced_at = 0, time.monotonic()

    def close(self) -> None:
        """Bring every line to the disk and let others write."""
        self.sync()
        self._file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
