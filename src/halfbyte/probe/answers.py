"""Parse the answers of servers, complete or streamed, into one form.

Servers answer in undocumented forms. Parsed fields have the types that the probes rely on. A field of another type is
dropped, or makes the answer an error with a message. It never aborts a run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. If it is not usable, `error` is the reason; `status` is the HTTP status of a refusal."""

    id: str  # its row in probe.jsonl
    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    logprobs: Any = None
    chunks: tuple[Mapping[str, Any], ...] = ()  # of a stream: the fields of each chunk and its time (`t`, seconds)
    ended: bool = True  # of a stream: with [DONE]
    cut_by: str | None = None  # why the probe canceled the stream
    bad_utf8: int = 0  # events of a stream that are not valid UTF-8
    first_token_s: float | None = None
    seconds: float = 0.0
    error: str | None = None
    status: int | None = None

    @property
    def text(self) -> str:
        """The content, or an empty text."""
        return self.content or ""

    @property
    def written(self) -> tuple[tuple[str, str], ...]:
        """The content and the reasoning, each with its name."""
        return ("content", self.text), ("reasoning", self.reasoning or "")

    @property
    def cut_in(self) -> str | None:
        """The part that the token limit cut: the content, or the reasoning if no content followed it."""
        if self.finish_reason != "length":
            return None
        return "content" if self.text else "reasoning"

    @property
    def completion_tokens(self) -> int:
        """The number of generated tokens that the server reports, or 0."""
        return _count(self.usage, "completion_tokens") or 0

    @property
    def token_logprobs(self) -> list[dict[str, Any]]:
        """The `token`, `logprob` and `top_logprobs` of each generated token of a chat; empty if not reported."""
        tokens = _object(self.logprobs).get("content")
        return [_object(token) for token in cast("list[Any]", tokens)] if isinstance(tokens, list) else []

    @property
    def prompt_tokens(self) -> int | None:
        """The number of prompt tokens that the server reports."""
        return _count(self.usage, "prompt_tokens")


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object unchanged, and an empty one for anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    """Return a text, joined from a list of parts if necessary; raise TypeError for anything else."""
    if isinstance(value, list):
        texts = [part if isinstance(part, str) else _object(part).get("text") for part in cast("list[Any]", value)]
        return "".join(str(text or "") for text in texts)
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"expected a text, got {str(cast('object', value))[:60]!r}")


def _reasoning(message: Mapping[str, Any]) -> str | None:
    return _text(message.get("reasoning_content") or message.get("reasoning"))


def _calls(value: Any) -> list[dict[str, Any]]:
    """Return tool calls; raise TypeError for anything but a list of objects."""
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in cast("list[Any]", value)):
        raise TypeError(f"expected a list of tool calls, got {str(cast('object', value))[:60]!r}")
    calls = cast("list[dict[str, Any]]", value)
    return [{**call, "function": _object(call.get("function"))} for call in calls]


def _finish_reason(choice: Mapping[str, Any]) -> str | None:
    value = choice.get("finish_reason")
    return str(value) if value else None


def read_plain(body: Any) -> dict[str, Any]:
    """Parse a complete answer; an answer of another shape becomes an error."""
    reported = _object(body).get("error")
    if reported and not _object(body).get("choices"):
        return {"error": f"the server reports: {str(reported)[:300]}"}  # with status 200, as some gateways do
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
        return {"error": f"unreadable answer: {type(error).__name__}: {error}"}


def read_chunk(event: bytes, seconds: float) -> dict[str, Any]:
    """Parse one event of a stream; only fields that are present have a key."""
    fields: dict[str, Any] = {"t": round(seconds, 4)}
    try:
        text = event.decode()
    except UnicodeDecodeError:
        text = event.decode("utf-8", "replace")
        fields["bad_utf8"] = True
    try:
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("not a JSON object")
        return fields | _delta(cast("dict[str, Any]", body))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return fields | {"error": f"unreadable chunk: {error}: {text[:200]}"}


def _delta(body: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.get("error"):  # null means no error
        return {"error": f"the stream reports: {str(body['error'])[:300]}"}
    if _object(body.get("usage")):
        fields["usage"] = body["usage"]
    for choice in body.get("choices") or ():
        delta = choice.get("delta") or ({"content": choice["text"]} if "text" in choice else {})
        parts = {
            "content": _text(delta.get("content")),
            "reasoning": _reasoning(delta),
            "tool_calls": _calls(delta.get("tool_calls")),
            "finish_reason": _finish_reason(choice),
            "logprobs": _object(choice.get("logprobs")),
        }
        fields |= {key: value for key, value in parts.items() if value}
    return fields


def join_chunks(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the chunks of a stream into the fields of an answer."""

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
    """Join log-probabilities: one list under `content` for chats, several parallel lists for completions."""
    parts = [chunk["logprobs"] for chunk in chunks if "logprobs" in chunk]
    if not parts:
        return None
    lists = {key for part in parts for key, value in part.items() if isinstance(value, list)}
    return {key: [entry for part in parts for entry in part.get(key) or ()] for key in sorted(lists)}
