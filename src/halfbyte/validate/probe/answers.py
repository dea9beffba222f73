"""What came back for one request, whole or chunk by chunk, in one form.

Servers answer in forms that nobody has written down. What is read here has the types that the probes rely on: a part of
another type is left out, or makes the answer an error that says so, and never ends a run.
"""

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
        return _count(self.usage, "completion_tokens") or 0

    @property
    def token_logprobs(self) -> list[dict[str, Any]]:
        """What a chat tells of each token it wrote: `token`, `logprob`, `top_logprobs`; empty if it does not."""
        told = _object(self.logprobs).get("content")
        return [_object(one) for one in cast("list[Any]", told)] if isinstance(told, list) else []

    @property
    def prompt_tokens(self) -> int | None:
        """What the server says the prompt was."""
        return _count(self.usage, "prompt_tokens")


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    """Return a text, also one that comes as a list of parts; anything else is an error."""
    if isinstance(value, list):
        parts = [one if isinstance(one, str) else _object(one).get("text") or "" for one in cast("list[Any]", value)]
        return "".join(str(one) for one in parts)
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{str(cast('object', value))[:60]!r} where a text belongs")


def _reasoning(message: Mapping[str, Any]) -> str | None:
    return _text(message.get("reasoning_content") or message.get("reasoning"))


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return tool calls; a list of anything but objects is an error."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in cast("list[Any]", value)):
        raise TypeError(f"{str(cast('object', value))[:60]!r} where a list of tool calls belongs")
    calls = cast("list[dict[str, Any]]", value)
    return [{**one, "function": _object(one.get("function"))} for one in calls]


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    value = choice.get("finish_reason")
    return str(value) if value else None


def read_plain(body: Any) -> dict[str, Any]:
    """Return the fields of an answer that came whole; an answer of another shape is an error."""
    said = _object(body).get("error")
    if said and not _object(body).get("choices"):
        return {"error": f"the answer says: {str(said)[:300]}"}  # with status 200, as some gateways do
    try:
        choice = body["choices"][0]
        message: dict[str, Any] = choice["message"] if "message" in choice else {"content": choice["text"]}
        return {
            "content": _text(message.get("content")),
            "reasoning": _reasoning(message),
            "tool_calls": _calls(message.get("tool_calls")),
            "finish_reason": _finish_reason(choice),
            "usage": _object(body.get("usage")),
            "logprobs": _object(choice.get("logprobs")) or None,
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
    if body.get("error"):  # null says that there is none
        return {"error": f"the stream says: {str(body['error'])[:300]}"}
    if _object(body.get("usage")):
        found["usage"] = body["usage"]
    for choice in body.get("choices") or ():
        delta = choice.get("delta") or ({"content": choice["text"]} if "text" in choice else {})
        parts = {
            "content": _text(delta.get("content")),
            "reasoning": _reasoning(delta),
            "tool_calls": _calls(delta.get("tool_calls")),
            "finish_reason": _finish_reason(choice),
            "logprobs": _object(choice.get("logprobs")),
        }
        found |= {key: value for key, value in parts.items() if value}
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
            index = _count(delta, "index") or 0
            call = calls.setdefault(index, {"function": {"name": "", "arguments": ""}})
            call |= {key: delta[key] for key in ("id", "type") if delta.get(key)}
            for key in ("name", "arguments"):
                piece = delta["function"].get(key) or ""
                call["function"][key] += piece if isinstance(piece, str) else json.dumps(piece)
    return [calls[index] for index in sorted(calls)]


def _joined_logprobs(chunks: Sequence[Mapping[str, Any]]) -> Any:
    """Chats give a list under `content`; completions several lists side by side."""
    told = [chunk["logprobs"] for chunk in chunks if "logprobs" in chunk]
    if not told:
        return None
    lists = {key for part in told for key, value in part.items() if isinstance(value, list)}
    return {key: [one for part in told for one in part.get(key) or ()] for key in sorted(lists)}
