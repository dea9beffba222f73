"""One streamed answer on its way to the client: passed on as it came, until a choice falls into a loop.

That choice then ends with finish_reason "repetition" and what the server still says of it is dropped. When every choice
has ended so, the server need not go on. Watched are the text and the thoughts. Tool calls are not: their arguments are
data, and data may repeat.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

from halfbyte.serve.guard.events import data_of
from halfbyte.validate.probe.degeneracy.watch import Loop, LoopWatch

FINISH_REASON = "repetition"
DONE = b"[DONE]"
_FIELDS = ("content", "reasoning_content", "reasoning", "text")  # of a delta; the last of a choice of completions
_COPIED = ("id", "object", "created", "model", "system_fingerprint")
MOST_CHOICES = 128  # of one answer that are watched: memory is bounded whatever a server sends


class StreamedAnswer:
    """Events in, events out; `over` once the server may stop."""

    def __init__(self, request: dict[str, Any], noticed: Callable[[Loop], None] = lambda loop: None) -> None:
        self._asked = _choices(request)
        options: Any = request.get("stream_options")
        self._wants_usage = isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("include_usage"))
        self._noticed = noticed
        self._watches: dict[tuple[int, str], LoopWatch] = {}
        self._looping: set[int] = set()
        self._ended: set[int] = set()
        self._usage: Any = None
        self._pieces = 0
        self.over = False

    def pass_on(self, event: bytes) -> bytes:
        """Return the bytes for the client; those of the event itself where nothing loops."""
        chunk = _as_chunk(data_of(event))
        if chunk is None:
            return event
        self._usage = chunk.get("usage") or self._usage
        choices = cast("list[Any]", chunk["choices"])
        kept = [one for one in choices if not self._is_of_ended_loop(one)]
        new = [index for one in kept if (index := self._watched(one)) is not None]
        if not new:
            return event if len(kept) == len(choices) else _event({**chunk, "choices": kept}) if kept else b""
        self._looping |= set(new)
        last = {**chunk, "choices": [self._finished(one) if _index(one) in new else one for one in kept]}
        self.over = len(self._looping | self._ended) >= self._asked
        return _event(last) + (self._end(chunk) if self.over else b"")

    def _is_of_ended_loop(self, choice: Any) -> bool:
        return isinstance(choice, dict) and _index(cast("dict[str, Any]", choice)) in self._looping

    def _watched(self, choice: Any) -> int | None:
        """Read one choice of a chunk; return its index where a loop has begun."""
        if not isinstance(choice, dict):
            return None
        fields = cast("dict[str, Any]", choice)
        index = _index(fields)
        if index is None or index in self._ended:
            return None
        if fields.get("finish_reason"):  # some servers send "" until the end
            self._ended.add(index)
            return None  # it ends by itself, and knows why
        delta: Any = fields.get("delta") if isinstance(fields.get("delta"), dict) else fields
        for name in _FIELDS:
            piece = delta.get(name)
            if isinstance(piece, str) and piece:
                self._pieces += 1
                loop = self._watch(index, name).feed(piece)
                if loop is not None:
                    self._noticed(loop)
                    return index
        return None

    def _watch(self, index: int, field: str) -> LoopWatch:
        if (index, field) not in self._watches and len(self._watches) >= MOST_CHOICES:
            return LoopWatch()
        return self._watches.setdefault((index, field), LoopWatch())

    @staticmethod
    def _finished(choice: dict[str, Any]) -> dict[str, Any]:
        """The client gets the piece in which the loop was noticed, and the end with it."""
        return {**choice, "finish_reason": FINISH_REASON}

    def _end(self, chunk: dict[str, Any]) -> bytes:
        usage = b""
        if self._wants_usage:
            head = {name: chunk[name] for name in _COPIED if name in chunk}
            usage = _event({**head, "choices": [], "usage": self._usage or self._estimate()})
        return usage + b"data: " + DONE + b"\n\n"

    def _estimate(self) -> dict[str, Any]:
        """The server never said: it was to come at the end. Most servers send a token in each piece."""
        counts = {"prompt_tokens": 0, "completion_tokens": self._pieces, "total_tokens": self._pieces}
        return {**counts, "estimated": True}


def _choices(request: dict[str, Any]) -> int:
    """Return how many choices will come: so many for each prompt, and completions may have several prompts."""
    each, prompts = request.get("n"), request.get("prompt")
    several = cast("list[Any]", prompts) if isinstance(prompts, list) else []
    count = len(several) if several and not isinstance(several[0], int) else 1  # numbers are the tokens of one prompt
    return count * (max(1, each) if isinstance(each, int) else 1)


def _index(choice: Any) -> int | None:
    """Return which choice this is; the only one need not say."""
    index = cast("dict[str, Any]", choice).get("index", 0) if isinstance(choice, dict) else None
    return index if isinstance(index, int) else None


def _as_chunk(data: bytes) -> dict[str, Any] | None:
    if not data or data == DONE:
        return None
    try:
        found: Any = json.loads(data)
    except (ValueError, RecursionError):  # also bytes that are no UTF-8, and brackets without end
        return None
    if not isinstance(found, dict):
        return None
    chunk = cast("dict[str, Any]", found)
    return chunk if isinstance(chunk.get("choices"), list) else None


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
