"""probe.jsonl: every request and its answer, one line each. A run that was stopped goes on from it.

Answers count only for the run they belong to: a line `run` says who was asked, and a line `finished` closes it. So a
server that was started anew, perhaps with another checkpoint under the same address, is asked everything again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from halfbyte.validate.lines import Lines

FILE = "probe.jsonl"


def request_key(url: str, path: str, body: Any, repetition: int) -> str:
    """Return the name of a request: the endpoint, what was sent, and the how-manieth time of the same."""
    whole = json.dumps([url, path, body, repetition], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:20]


class Trace(Lines):
    """The file, the answers in it that still count, and the probe that asks now."""

    def __init__(self, path: Path) -> None:
        self.probe = ""
        self.used: list[str] = []  # by the present probe
        self.sent = 0  # requests of this run, not those that were kept
        self.kept = 0  # answers that an earlier run left
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

    def start(self, asked: Mapping[str, Any]) -> None:
        """Go on with the run that these endpoints have open, or begin one."""
        if self._open_run != json.loads(json.dumps(asked)):
            self.add({"kind": "run", "at": _now(), "asked": dict(asked)})
        self.kept = len(self._answers)

    def finish(self) -> None:
        """Close the run: the next one asks everything again."""
        self.add({"kind": "finished", "at": _now()})

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the answer of that name, if there is one."""
        return self._answers.get(key)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append one line, and count it if it is a request."""
        self.sent += record["kind"] == "request"
        return super().add(record)

    def begin(self, probe: str) -> None:
        """Say which probe asks from now on."""
        self.probe, self.used = probe, []

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
