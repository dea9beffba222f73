"""What every domain produces: samples to learn from, and held-out items to be tested with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

HELD_OUT_PERCENT = 10

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing to learn: a chat (learned: the assistant's turns) or a document (learned: from a character on)."""

    domain: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False
    text: str = ""
    learn_from: int = 0
    spans: tuple[tuple[int, int], ...] = ()  # of a document: the only stretches that are learned, besides its end


@dataclass(frozen=True, slots=True)
class Item:
    """One test item: a raw prompt, or messages; what a domain's `score` needs is in `answer` and `fields`."""

    domain: str
    id: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: bool = False
    answer: Any = None
    fields: dict[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        """Return what a line of JSONL holds."""
        return asdict(self)


def held_out(key: str) -> bool:
    """Whether this content belongs to the tests: a stable hash decides, so no list needs to be kept."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % 100 < HELD_OUT_PERCENT
