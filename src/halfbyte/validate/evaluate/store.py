"""Every finished request, one line each, in a file that only grows; a killed run reads it again and repeats nothing.

A request is found again by everything that could change its answer: the address, the model's name, the fingerprint of
what is served there, suite, task, seed, item, and the bytes that were sent. lm-eval's own cache knows only the last.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.validate.lines import Lines


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
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


class Store(Lines):
    """What the file of an evaluation holds: endpoints, and answers by the names of their requests."""

    def __init__(self, path: Path) -> None:
        self.endpoints: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}
        super().__init__(path)

    def _remember(self, record: dict[str, Any]) -> None:
        if record["kind"] == "endpoint":
            self.endpoints.append({key: record[key] for key in ("kind", "fingerprint", "stable", "probes")})
        elif record["kind"] == "void":
            for key in record["keys"]:
                self._answers.pop(key, None)
        elif record["error"] is None:  # what failed is asked again
            _check(record)
            self._answers[record["key"]] = {**record, "answer": record["answer"]}

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the finished request of that name."""
        return self._answers.get(key)

    def drop(self, keys: list[str]) -> None:
        """Forget requests that turned out to be answered by somebody else; the file only grows, so it says so."""
        self.add({"kind": "void", "keys": keys})

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(record: dict[str, Any]) -> None:
    """A line that somebody edited, or that another version wrote: what cannot be read later is asked again."""
    counts = [record.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if not all(one is None or isinstance(one, int) for one in counts):
        raise ValueError("no counts of tokens")
    if not isinstance(record.get("finish_reason") or "", str):
        raise ValueError("no reason why it ended")
