"""Split a response into server-sent events, and pass them on unchanged until a choice starts to loop.

An event ends at an empty line. Events are kept as bytes, so characters split across reads stay intact and the proxy
passes on exactly the bytes it received.

A looping choice ends with finish_reason "repetition", and its later chunks are dropped. When all choices have ended,
the request is cancelled. A choice truncated by the token limit inside a loop also ends with "repetition" instead of
"length", because a client that continues after "length" would get more repetitions. Text and reasoning are checked.
Tool calls are not: their arguments are data, which may repeat.

The detector is the one of `loops` and `probe`. It reads each character once and checks at most DEEP characters every
EVERY characters, and once more at the end of a truncated choice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import Any, cast

from halfbyte.degeneracy.watch import Loop, LoopWatch

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
LONGEST_NBYTES = 1 << 23  # longer than an event with an image; beyond it the stream is passed on unparsed

FINISH_REASON = "repetition"
_CUT = "length"  # finish_reason of a choice that reached the token limit
DONE = b"[DONE]"
_FIELDS = ("content", "reasoning_content", "reasoning", "text")  # of a delta; `text` is of /v1/completions
_COPIED = ("id", "object", "created", "model", "system_fingerprint")
MOST_CHOICES = 128  # watched per response, to bound memory


class EventReader:
    """Splits pieces of a stream into events and buffers only an incomplete one."""

    def __init__(self) -> None:
        self._rest = b""
        self._raw = False

    def feed(self, piece: bytes) -> Generator[bytes]:
        """Yield each completed event, including its empty line."""
        if self._raw:
            yield piece
            return
        searched = max(0, len(self._rest) - 3)
        self._rest += piece
        while (end := _END.search(self._rest, searched)) is not None:
            event, self._rest = self._rest[: end.end()], self._rest[end.end() :]
            searched = 0
            yield event
        if len(self._rest) > LONGEST_NBYTES:
            self._raw = True
            yield self.rest()

    def rest(self) -> bytes:
        """Return the incomplete event at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    return b"\n".join(_DATA.findall(event))


class StreamedAnswer:
    """Filter for the events of one response; `over` is true once the request can be cancelled."""

    def __init__(self, request: dict[str, Any], noticed: Callable[[Loop], None] = lambda loop: None) -> None:
        self._choices = _choices(request)
        options: Any = request.get("stream_options")
        self._wants_usage = isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("include_usage"))
        self._noticed = noticed
        self._watches: dict[tuple[int, str], LoopWatch] = {}
        self._last_field: dict[int, str] = {}
        self._looping: set[int] = set()
        self._ended: set[int] = set()
        self._usage: Any = None
        self._pieces = 0
        self.over = False

    def pass_on(self, event: bytes) -> bytes:
        """Return the bytes for the client: the event itself unless a choice loops."""
        chunk = _as_chunk(data_of(event))
        if chunk is None:
            return event
        self._usage = chunk.get("usage") or self._usage
        choices = cast("list[Any]", chunk["choices"])
        kept = [choice for choice in choices if not self._is_of_ended_loop(choice)]
        new = [index for choice in kept if (index := self._watched(choice)) is not None]
        if not new:
            return event if len(kept) == len(choices) else _event({**chunk, "choices": kept}) if kept else b""
        self._looping |= set(new)
        last = {**chunk, "choices": [self._finished(choice) if _index(choice) in new else choice for choice in kept]}
        # After the token limit the server sends usage and [DONE] itself.
        self.over = not set(new) <= self._ended and len(self._looping | self._ended) >= self._choices
        return _event(last) + (self._end(chunk) if self.over else b"")

    def _is_of_ended_loop(self, choice: Any) -> bool:
        return isinstance(choice, dict) and _index(cast("dict[str, Any]", choice)) in self._looping

    def _watched(self, choice: Any) -> int | None:
        """Check one choice of a chunk; return its index if it loops."""
        if not isinstance(choice, dict):
            return None
        fields = cast("dict[str, Any]", choice)
        index = _index(fields)
        if index is None or index in self._ended:
            return None
        reason = fields.get("finish_reason")  # some servers send "" until the end
        if reason:
            self._ended.add(index)
        if reason and reason != _CUT:
            return None  # the model finished it
        delta: Any = fields.get("delta") if isinstance(fields.get("delta"), dict) else fields
        for name in _FIELDS:
            piece = delta.get(name)
            if isinstance(piece, str) and piece:
                self._pieces += 1
                self._last_field[index] = name
                loop = self._watch(index, name).feed(piece)
                if loop is not None:
                    self._noticed(loop)
                    return index
        return index if reason and self._is_cut_loop(index) else None

    def _is_cut_loop(self, index: int) -> bool:
        """Return whether the token limit truncated a choice inside a loop, in its last written field."""
        watch = self._watches.get((index, self._last_field.get(index, "")))
        loop = None if watch is None else watch.end(cut=True)
        if loop is not None:
            self._noticed(loop)
        return loop is not None

    def _watch(self, index: int, field: str) -> LoopWatch:
        if (index, field) not in self._watches and len(self._watches) >= MOST_CHOICES:
            return LoopWatch()
        return self._watches.setdefault((index, field), LoopWatch())

    @staticmethod
    def _finished(choice: dict[str, Any]) -> dict[str, Any]:
        """Return the chunk's choice, which still carries the text that completed the loop, as finished."""
        return {**choice, "finish_reason": FINISH_REASON}

    def _end(self, chunk: dict[str, Any]) -> bytes:
        usage = b""
        if self._wants_usage:
            head = {name: chunk[name] for name in _COPIED if name in chunk}
            usage = _event({**head, "choices": [], "usage": self._usage or self._estimate()})
        return usage + b"data: " + DONE + b"\n\n"

    def _estimate(self) -> dict[str, Any]:
        """Estimate the usage, which the server would have sent at the end; most servers send one token per event."""
        counts = {"prompt_tokens": 0, "completion_tokens": self._pieces, "total_tokens": self._pieces}
        return {**counts, "estimated": True}


def _choices(request: dict[str, Any]) -> int:
    """Return the number of choices: `n` for each prompt, and completions may have several prompts."""
    each, prompts = request.get("n"), request.get("prompt")
    several = cast("list[Any]", prompts) if isinstance(prompts, list) else []
    count = len(several) if several and not isinstance(several[0], int) else 1  # a list of integers is one prompt
    return count * (max(1, each) if isinstance(each, int) else 1)


def _index(choice: Any) -> int | None:
    """Return the index of a choice; 0 if it has none."""
    index = cast("dict[str, Any]", choice).get("index", 0) if isinstance(choice, dict) else None
    return index if isinstance(index, int) else None


def _as_chunk(data: bytes) -> dict[str, Any] | None:
    if not data or data == DONE:
        return None
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):  # includes invalid UTF-8 and deep nesting
        return None
    if not isinstance(value, dict):
        return None
    chunk = cast("dict[str, Any]", value)
    return chunk if isinstance(chunk.get("choices"), list) else None


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n\n"
