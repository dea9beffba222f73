"""Send the requests of probes, plain or streamed, with bounded time and attempts, and record each in the trace.

A request always returns an answer; without usable content it has `error`. The endpoint adds API keys; they are never
part of a body.

The trace, probe.jsonl, has every request and its answer, one per line. An interrupted run resumes from it: requests
with an answer in the trace are not sent again. Answers are valid only for their run: a line `run` identifies the
servers, and a line `finished` closes it. So a restarted server, perhaps with another checkpoint at the same address,
gets all requests again.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from halfbyte.endpoint.client import ASK_AGAIN, PATHS, Endpoint, EndpointError
from halfbyte.endpoint.sending import fan_out
from halfbyte.evidence.jsonl import Lines
from halfbyte.machine.retry import Backoff
from halfbyte.probe.answers import Answer, join_chunks, read_chunk, read_plain
from halfbyte.probe.profiles import Profile
from halfbyte.ui.units import timestamp

FILE = "probe.jsonl"


def request_key(url: str, path: str, body: Any, repetition: int) -> str:
    """Return the key of a request: a hash of the endpoint, the body and the repetition."""
    text = json.dumps([url, path, body, repetition], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class Trace(Lines):
    """The trace file, its valid answers and the current probe."""

    def __init__(self, path: Path) -> None:
        self.probe = ""
        self.used: list[str] = []  # keys of the current probe
        self.sent = 0  # requests sent by this run
        self.kept = 0  # answers reused from an interrupted run
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

    def start(self, servers: Mapping[str, Any]) -> None:
        """Resume the open run of these servers, or start a new one."""
        if self._open_run != json.loads(json.dumps(servers)):
            self.add({"kind": "run", "at": timestamp(), "asked": dict(servers)})
        self.kept = len(self._answers)

    def finish(self) -> None:
        """Close the run: the next one sends all requests again."""
        self.add({"kind": "finished", "at": timestamp()})

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the recorded answer with this key, if any."""
        return self._answers.get(key)

    def add(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append one line, and count it if it is a request."""
        self.sent += record["kind"] == "request"
        return super().add(record)

    def start_probe(self, probe: str) -> None:
        """Set the current probe."""
        self.probe, self.used = probe, []

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


BACKOFF = Backoff(attempts=3, first_wait_s=1.0)
ATTEMPTS_WHEN_RATE_LIMITED = 6  # half a minute in all: most rate limits are per minute
LATE = "no answer in "  # prefix of the timeout error of the endpoint; such a request is not sent again
SHORTEST_S = 1.0  # minimum timeout of a request, even if less of the budget is left
DONE = b"[DONE]"

Watch = Callable[[Mapping[str, Any]], str | None]  # a chunk -> why to cancel the stream, or None


class BudgetEndedError(Exception):
    """Raised if a request has no answer because the budget ran out."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    path: str
    body: Any  # bytes are sent unchanged
    repetition: int = 0  # distinguishes equal requests
    watch: Watch | None = None  # for streams
    timeout_s: float | None = None
    always: bool = False  # send even if the trace has an answer, because the probe tests the sending itself

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return isinstance(self.body, dict) and bool(cast("dict[str, Any]", self.body).get("stream"))


class Client:
    """Client of one endpoint."""

    backoff = BACKOFF
    deadline = math.inf  # of the budget, on the clock of time.monotonic; nothing is sent after it

    def __init__(self, endpoint: Endpoint, model: str, trace: Trace, profile: Profile, seed: int = 0) -> None:
        self.endpoint, self.model, self.trace, self.seed = endpoint, model, trace, seed
        self.chat_options = dict(profile.chat_options)  # of every chat, unless overridden
        self.thinking_options = dict(profile.thinking_options)
        self.concurrency = profile.concurrency
        self.observe: Callable[[Answer], None] = lambda _: None  # called with every new answer

    def chat(self, messages: str | Sequence[Mapping[str, Any]], *, repetition: int = 0, **options: Any) -> Answer:
        """Send one chat; a string is a user message. Greedy unless the options override it."""
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
        """Build a chat request for `ask` and `ask_all`; options that are None are omitted."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = self._body({"messages": turns}, self.chat_options | options)
        return Ask(PATHS["chat"], body, repetition, watch, timeout_s, always)

    def completion_ask(self, prompt: str | Sequence[int], *, repetition: int = 0, **options: Any) -> Ask:
        """Build a completion request."""
        return Ask(PATHS["completions"], self._body({"prompt": prompt}, options), repetition)

    def _body(self, content: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        first = {"model": self.model, **content, "temperature": 0, "max_tokens": 256, "seed": self.seed}
        return self.body_of(first, options)

    @staticmethod
    def body_of(first: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Merge options into a body; options that are None are omitted."""
        body = {**first, **options}
        if body.get("stream"):
            body.setdefault("stream_options", {"include_usage": True})
        return {key: value for key, value in body.items() if value is not None}

    def unanswered(self, asks: Iterable[Ask]) -> list[Ask]:
        """Return the requests without an answer in the trace."""
        return [ask for ask in asks if ask.always or self.trace.get(self._key(ask)) is None]

    def _key(self, ask: Ask) -> str:
        return request_key(self.endpoint.url, ask.path, _body_text(ask), ask.repetition)

    def ask_all(self, asks: Sequence[Ask], concurrency: int | None = None) -> list[Answer]:
        """Send requests concurrently; return the answers in the order of the requests."""
        answers: dict[int, Answer] = {}
        for number, answer in fan_out(
            len(asks), concurrency or self.concurrency, lambda number, stop: self.ask(asks[number], stop)
        ):
            answers[number] = answer
        return [answers[number] for number in range(len(asks))]

    def ask(self, ask: Ask, stop: threading.Event | None = None) -> Answer:
        """Send a request unless the trace has its answer; record the answer."""
        body, key = _body_text(ask), self._key(ask)
        known = None if ask.always else self.trace.get(key)
        self.trace.used.append(key)
        if known is not None:
            return _as_answer(key, known["answer"])
        fields, attempts = self._attempts(ask, stop or threading.Event())
        fields.pop("again", None)
        again = fields.get("error") is not None and not _refused(fields)
        row = self.trace.add(
            {
                "kind": "request", "id": key, "probe": self.trace.probe, "url": self.endpoint.url, "path": ask.path,
                "repetition": ask.repetition, "request": body, "attempts": attempts, "again": again, "answer": fields,
            }
        )  # fmt: skip
        answer = _as_answer(key, row["answer"])  # as recorded: without API keys
        self.observe(answer)
        return answer

    def _attempts(self, ask: Ask, stop: threading.Event) -> tuple[dict[str, Any], int]:
        attempt = 0
        while True:
            attempt += 1
            if time.monotonic() >= self.deadline:
                raise BudgetEndedError
            fields = self._once(ask)
            if LATE in str(fields.get("error")) and time.monotonic() >= self.deadline:
                raise BudgetEndedError
            rate_limited = fields.get("status") == http.client.TOO_MANY_REQUESTS
            limit = ATTEMPTS_WHEN_RATE_LIMITED if rate_limited else self.backoff.attempts
            wait_s = self.backoff.wait_s(attempt)
            late = str(fields.get("error")).startswith(LATE) or time.monotonic() + wait_s > self.deadline
            if not fields.get("again") or late or attempt >= limit or stop.is_set():
                return fields, attempt
            stop.wait(wait_s)

    def _once(self, ask: Ask) -> dict[str, Any]:
        start = time.perf_counter()
        left_s = max(SHORTEST_S, self.deadline - time.monotonic())
        ask = replace(ask, timeout_s=min(ask.timeout_s or self.endpoint.timeout_s, left_s))
        try:
            if ask.stream:
                fields = self._streamed(ask, start)
            elif isinstance(ask.body, bytes):
                fields = read_plain(self.endpoint.post_bytes(ask.path, ask.body, ask.timeout_s))
            else:
                fields = read_plain(self.endpoint.post(ask.path, ask.body, ask.timeout_s))
        except EndpointError as error:
            fields = {"error": str(error), "status": error.status, "again": error.again}
        return fields | {"seconds": round(time.perf_counter() - start, 4)}

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
                failed = {"error": f"the stream broke: {error}"}  # the chunks are evidence: no second attempt
        return join_chunks(chunks) | {"chunks": chunks, "ended": ended, "cut_by": cut_by} | failed


def _body_text(ask: Ask) -> Any:
    """Return a body as recorded in the trace."""
    return ask.body.decode("utf-8", "replace") if isinstance(ask.body, bytes) else ask.body


def _refused(fields: Mapping[str, Any]) -> bool:
    """Whether the server refused the request for good; a later run repeats requests that failed otherwise."""
    status = fields.get("status")
    return status is not None and status not in ASK_AGAIN and status < http.client.INTERNAL_SERVER_ERROR


def _as_answer(key: str, recorded: Mapping[str, Any]) -> Answer:
    fields = dict(recorded)
    fields["tool_calls"] = tuple(fields.get("tool_calls") or ())
    fields["chunks"] = tuple(fields.get("chunks") or ())
    return Answer(id=key, **fields)
