"""Requests of a probe: plain or streamed, with bounded time and attempts, each in the trace, none sent twice.

An answer always comes back: one without content has `error`. Keys are added by the endpoint and are never in a body.
"""

from __future__ import annotations

import http.client
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

from halfbyte.validate.endpoint import ASK_AGAIN, PATHS, Endpoint, EndpointError
from halfbyte.validate.probe.answers import Answer, join_chunks, read_chunk, read_plain
from halfbyte.validate.probe.profiles import Profile
from halfbyte.validate.probe.trace import Trace, request_key
from halfbyte.validate.sending import fan_out

ATTEMPTS = 3
ATTEMPTS_WHEN_TOLD_TO_WAIT = 6  # half a minute: limits are mostly by the minute
LATE = "no answer in "  # what the endpoint says of a request that took its whole time: no second one after that
SHORTEST_S = 1.0  # a request that is begun may take so long, whatever the budget
WAIT_S = 1.0  # before the second attempt; twice that before the third
DONE = b"[DONE]"

Watch = Callable[[Mapping[str, Any]], str | None]  # a chunk -> why to hang up, or None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    path: str
    body: Any  # bytes are sent as they are
    repetition: int = 0  # tells equal requests apart
    watch: Watch | None = None  # of a stream
    timeout_s: float | None = None
    always: bool = False  # sent also if the trace has its answer: where the sending is what is looked at

    @property
    def stream(self) -> bool:
        """Whether the answer is to come chunk by chunk."""
        return isinstance(self.body, dict) and bool(cast("dict[str, Any]", self.body).get("stream"))


class Client:
    """One endpoint as probes see it."""

    wait_s = WAIT_S
    deadline = math.inf  # of the budget, on the clock of time.monotonic

    def __init__(self, endpoint: Endpoint, model: str, trace: Trace, profile: Profile, seed: int = 0) -> None:
        self.endpoint, self.model, self.trace, self.seed = endpoint, model, trace, seed
        self.chat_options = dict(profile.chat_options)  # of every chat that does not say otherwise
        self.thinking_options = dict(profile.thinking_options)
        self.concurrency = profile.concurrency
        self.observe: Callable[[Answer], None] = lambda _: None  # told of every answer that was really sent for

    def chat(self, messages: str | Sequence[Mapping[str, Any]], *, repetition: int = 0, **options: Any) -> Answer:
        """Ask one chat; a text is a question of the user. Greedy unless the options say otherwise."""
        return self.ask(self.chat_ask(messages, repetition=repetition, **options))

    def chat_ask(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        repetition: int = 0,
        watch: Watch | None = None,
        timeout_s: float | None = None,
        always: bool = False,
        **options: Any,
    ) -> Ask:
        """Return the request of a chat, for `ask` and `ask_all`; an option that is None is left out."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = self._body({"messages": turns}, self.chat_options | options)
        return Ask(PATHS["chat"], body, repetition, watch, timeout_s, always)

    def completion_ask(self, prompt: str | Sequence[int], *, repetition: int = 0, **options: Any) -> Ask:
        """Return the request of a bare continuation."""
        return Ask(PATHS["completions"], self._body({"prompt": prompt}, options), repetition)

    def _body(self, what: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        first = {"model": self.model, **what, "temperature": 0, "max_tokens": 256, "seed": self.seed}
        return self.body_of(first, options)

    @staticmethod
    def body_of(first: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body with options; one that is None is left out."""
        body = {**first, **options}
        if body.get("stream"):
            body.setdefault("stream_options", {"include_usage": True})
        return {key: value for key, value in body.items() if value is not None}

    def ask_all(self, asks: Sequence[Ask], concurrency: int | None = None) -> list[Answer]:
        """Ask several at once; return the answers in the order of the requests."""
        found: dict[int, Answer] = {}
        for number, answer in fan_out(
            len(asks), concurrency or self.concurrency, lambda number, stop: self.ask(asks[number], stop)
        ):
            found[number] = answer
        return [found[number] for number in range(len(asks))]

    def ask(self, ask: Ask, stop: threading.Event | None = None) -> Answer:
        """Ask, unless the trace has the answer; write it down."""
        body = ask.body.decode("utf-8", "replace") if isinstance(ask.body, bytes) else ask.body
        key = request_key(self.endpoint.url, ask.path, body, ask.repetition)
        known = None if ask.always else self.trace.get(key)
        self.trace.used.append(key)
        if known is not None:
            return _as_answer(key, known["answer"])
        told, attempts = self._attempts(ask, stop or threading.Event())
        told.pop("again", None)
        again = told.get("error") is not None and not _refused(told)
        row = self.trace.add(
            {
                "kind": "request", "id": key, "probe": self.trace.probe, "url": self.endpoint.url, "path": ask.path,
                "repetition": ask.repetition, "request": body, "attempts": attempts, "again": again, "answer": told,
            }
        )  # fmt: skip
        answer = _as_answer(key, row["answer"])  # as it was written: without keys, also on a terminal
        self.observe(answer)
        return answer

    def _attempts(self, ask: Ask, stop: threading.Event) -> tuple[dict[str, Any], int]:
        attempt = 0
        while True:
            attempt += 1
            told = self._once(ask)
            most = ATTEMPTS_WHEN_TOLD_TO_WAIT if told.get("status") == http.client.TOO_MANY_REQUESTS else ATTEMPTS
            wait_s = self.wait_s * 2 ** (attempt - 1)
            late = str(told.get("error")).startswith(LATE) or time.monotonic() + wait_s > self.deadline
            if not told.get("again") or late or attempt >= most or stop.is_set():
                return told, attempt
            stop.wait(wait_s)

    def _once(self, ask: Ask) -> dict[str, Any]:
        start = time.perf_counter()
        left_s = max(SHORTEST_S, self.deadline - time.monotonic())
        ask = replace(ask, timeout_s=min(ask.timeout_s or self.endpoint.timeout_s, left_s))
        try:
            if ask.stream:
                told = self._streamed(ask, start)
            elif isinstance(ask.body, bytes):
                told = read_plain(self.endpoint.post_bytes(ask.path, ask.body, ask.timeout_s))
            else:
                told = read_plain(self.endpoint.post(ask.path, ask.body, ask.timeout_s))
        except EndpointError as error:
            told = {"error": str(error), "status": error.status, "again": error.again}
        return told | {"seconds": round(time.perf_counter() - start, 4)}

    def _streamed(self, ask: Ask, start: float) -> dict[str, Any]:
        chunks: list[dict[str, Any]] = []
        ended, cut_by = False, None
        failed: dict[str, Any] = {}
        with closing(self.endpoint.events(ask.path, ask.body, ask.timeout_s)) as events:
            try:
                for event in events:
                    if event == DONE:
                        ended = True
                        break
                    chunks.append(read_chunk(event, time.perf_counter() - start))
                    cut_by = ask.watch(chunks[-1]) if ask.watch else None
                    if cut_by:
                        break
            except EndpointError as error:
                if not chunks:
                    raise
                failed = {"error": f"the stream broke: {error}"}  # what came is evidence: no second attempt
        return join_chunks(chunks) | {"chunks": chunks, "ended": ended, "cut_by": cut_by} | failed


def _refused(told: Mapping[str, Any]) -> bool:
    """Whether the server has answered with a no, which stays one; what merely failed is asked again by a later run."""
    status = told.get("status")
    return status is not None and status not in ASK_AGAIN and status < http.client.INTERNAL_SERVER_ERROR


def _as_answer(key: str, told: Mapping[str, Any]) -> Answer:
    fields = dict(told)
    fields["tool_calls"] = tuple(fields.get("tool_calls") or ())
    fields["chunks"] = tuple(fields.get("chunks") or ())
    return Answer(id=key, **fields)
