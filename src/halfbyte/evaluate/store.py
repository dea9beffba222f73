"""An append-only journal of finished requests, one per line, from which an interrupted run resumes.

The key of a request covers everything that could change its answer: address, model name, server fingerprint, suite,
task, seed, item, and the request body. lm-eval's cache considers only the body.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from halfbyte.evidence.jsonl import Lines


@dataclass(frozen=True, slots=True)
class Scope:
    """The server, suite, task and seed of a request."""

    url: str
    model: str
    fingerprint: str
    suite: str
    task: str
    seed: int


def request_key(scope: Scope, item: tuple[str, int, int], payload: Any) -> str:
    """Return the key of a request. Equal keys have equal answers, within the server's noise."""
    whole = [asdict(scope), list(item), payload]
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


class Store(Lines):
    """The journal of an evaluation: endpoints, and answers by request key."""

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
        elif record["error"] is None:  # failed requests are sent again
            _check(record)
            self._answers[record["key"]] = {**record, "answer": record["answer"]}

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the finished request with this key."""
        return self._answers.get(key)

    def drop(self, keys: list[str]) -> None:
        """Invalidate answers of another server by appending a "void" record."""
        self.add({"kind": "void", "keys": keys})

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(record: dict[str, Any]) -> None:
    """Raise if an edited or outdated line is invalid. Its request is then sent again."""
    counts = [record.get(name) for name in ("prompt_tokens", "completion_tokens")]
    if not all(count is None or isinstance(count, int) for count in counts):
        raise ValueError("invalid token counts")
    if not isinstance(record.get("finish_reason") or "", str):
        raise ValueError("invalid finish_reason")
