"""probe.jsonl: every request and its answer, one per line. An interrupted run resumes from it.

Answers are valid only for their run: a line `run` identifies the servers, and a line `finished` closes it. So a
restarted server, perhaps with another checkpoint at the same address, gets all requests again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from halfbyte.evidence.jsonl import Lines

FILE = "probe.jsonl"


def request_key(url: str, path: str, body: Any, repetition: int) -> str:
    """Return the key of a request: a hash of the endpoint, the body and the repetition."""
    text = json.dumps([url, path, body, repetition], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Trace(Lines):
    """The trace file, its valid answers and the current probe."""

    def __init__(self, path: Path) -> None:
        self.probe = ""
        self.used: list[str] = []  # keys of the current probe
        self.sent = 0  # requests sent by this run
        self.kept = 0  # answers reused from an interrupted run
        self._answers: dict[str, dict[str, Any]] = {}
        self._open_run: Any = None
        super().__init__(path)

    def _remember(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "run":
            self._open_run = record["asked"]
            self._answers.clear()
        elif kind == "finished":
            self._open_run = None
            self._answers.clear()
        elif kind == "request" and not record["again"]:
            self._answers[record["id"]] = record

    def start(self, servers: Mapping[str, Any]) -> None:
        """Resume the open run of these servers, or start a new one."""
        if self._open_run != json.loads(json.dumps(servers)):
            self.add({"kind": "run", "at": _now(), "asked": dict(servers)})
        self.kept = len(self._answers)

    def finish(self) -> None:
        """Close the run: the next one sends all requests again."""
        self.add({"kind": "finished", "at": _now()})

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the recorded answer with this key, if any."""
        return self._answers.get(key)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append one line, and count it if it is a request."""
        self.sent += record["kind"] == "request"
        return super().add(record)

    def begin(self, probe: str) -> None:
        """Set the current probe."""
        self.probe, self.used = probe, []

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
