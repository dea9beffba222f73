"""What came back for one request, whole or chunk by chunk, in one form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. Without a usable one `error` says why; `status` is the HTTP status of a refusal."""

    id: str  # its row in probe.jsonl
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logprobs: Any = None
    chunks: tuple[Mapping[str, Any], ...] = ()  # of a stream: what each brought, and when (`t`, seconds)
    ended: bool = True  # a stream: with [DONE]
    cut_by: str | None = None  # why we hung up ourselves
    bad_utf8: int = 0  # events of a stream that are no UTF-8
    first_token_s: float | None = None
    seconds: float = 0.0
    error: str | None = None
    status: int | None = None

    @property
    def text(self) -> str:
        """The content, empty if there was none."""
        return self.content or ""

    @property
    def completion_tokens(self) -> int:
        """What the server says it wrote, 0 if it does not say."""
        return int(self.usage.get("completion_tokens") or 0)

    @property
    def token_logprobs(self) -> list[dict[str, Any]]:
        """What a chat tells of each token it wrote: `token`, `logprob`, `top_logprobs`; empty if it does not."""
        return list(cast("dict[str, Any]", self.logprobs or {}).get("content") or ())

    @property
    def prompt_tokens(self) -> int | None:
        """What the server says the prompt was."""
        return self.usage.get("prompt_tokens")


def read_plain(body: Any) -> dict[str, Any]:
    """Return the fields of an answer that came whole; an answer of another shape is an error."""
    try:
        choice = body["choices"][0]
        message: dict[str, Any] = choice["message"] if "message" in choice else {"content": choice["text"]}
        return {
            "content": message.get("content"),
            "reasoning": message.get("reasoning_content") or message.get("reasoning"),
            "tool_calls": list(message.get("tool_calls") or ()),
            "finish_reason": choice.get("finish_reason"),
            "usage": body.get("usage") or {},
            "logprobs": choice.get("logprobs"),
        }
    except (LookupError, TypeError, AttributeError) as error:
        return {"error": f"an answer that cannot be read: {type(error).__name__}: {error}"}


def read_chunk(event: bytes, seconds: float) -> dict[str, Any]:
    """Return what one event of a stream brought; only what is there has a key."""
    found: dict[str, Any] = {"t": round(seconds, 4)}
    try:
        text = event.decode()
    except UnicodeDecodeError:
        text = event.decode("utf-8", "replace")
        found["bad_utf8"] = True
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("not a JSON object")
        return found | _delta(cast("dict[str, Any]", body))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return found | {"error": f"a chunk that cannot be read: {error}: {text[:200]}"}


def _delta(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "error" in body:
        return {"error": f"the stream says: {str(body['error'])[:300]}"}
    if body.get("usage"):
        found["usage"] = body["usage"]
    for choice in body.get("choices") or ():
        delta = choice.get("delta") or ({"content": choice["text"]} if "text" in choice else {})
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        for key, value in (("content", delta.get("content")), ("reasoning", reasoning)):
            if value:
                found[key] = value
        for key, value in (("tool_calls", delta.get("tool_calls")), ("finish_reason", choice.get("finish_reason")),
                           ("logprobs", choice.get("logprobs"))):  # fmt: skip
            if value:
                found[key] = value
    return found


def join_chunks(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of the answer that a stream's chunks make."""

    def joined(key: str) -> str | None:
        return "".join(chunk[key] for chunk in chunks if key in chunk) or None

    def last(key: str) -> Any:
        return next((chunk[key] for chunk in reversed(chunks) if key in chunk), None)

    carrying = ("content", "reasoning", "tool_calls")
    return {
        "content": joined("content"),
        "reasoning": joined("reasoning"),
        "tool_calls": _joined_calls(chunks),
        "finish_reason": last("finish_reason"),
        "usage": last("usage") or {},
        "logprobs": _joined_logprobs(chunks),
        "first_token_s": next((chunk["t"] for chunk in chunks if any(key in chunk for key in carrying)), None),
        "bad_utf8": sum("bad_utf8" in chunk for chunk in chunks),
        "error": last("error"),
    }


def _joined_calls(chunks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for delta in chunk.get("tool_calls", ()):
            call = calls.setdefault(int(delta.get("index") or 0), {"function": {"name": "", "arguments": ""}})
            call |= {key: delta[key] for key in ("id", "type") if delta.get(key)}
            for key in ("name", "arguments"):
                call["function"][key] += (delta.get("function") or {}).get(key) or ""
    return [calls[index] for index in sorted(calls)]


def _joined_logprobs(chunks: Sequence[Mapping[str, Any]]) -> Any:
    """Chats give a list under `content`; completions several lists side by side."""
    told = [chunk["logprobs"] for chunk in chunks if "logprobs" in chunk]
    if not told:
        return None
    return {
        key: [one for part in told for one in part.get(key) or ()] for key in told[0] if isinstance(told[0][key], list)
    }
