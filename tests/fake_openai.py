"""A small OpenAI-compatible server with scripted answers and switchable faults.

A token is a word or a punctuation mark. `answers` maps a part of the last question to the answer; list entries are
looked up as a healthy model would. All requests are in `asked`.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from typing import Any

from quiet_server import QuietServer

_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])", re.UNICODE)
_ENTRY = re.compile(r"^- (.+): (\d+)$", re.MULTILINE)
_KEY = re.compile(r"entry '([^']+)'|has the (.+)\?")


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


@lru_cache(maxsize=64)  # long prompts are counted several times
def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


@dataclass
class Say:
    """One answer."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"


@dataclass
class Fake:
    """Contents, faults and requests of the server."""

    limit: int = 262_144
    answers: dict[str, Any] = field(default_factory=dict)  # a part of the last question -> a text or a Say
    default: str = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen."
    wrong: set[str] = field(default_factory=set)  # names of faults, see below
    fails: dict[str, int] = field(default_factory=dict)  # a part of the question -> a status
    hangs: dict[str, float] = field(default_factory=dict)
    needle_limit: int | None = None  # beyond so many tokens entries are not found
    started: float = 1.0
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: int = 0
    busy: int = 0
    most_busy: int = 0
    streamed: dict[str, Any] | None = None  # the last request for a stream
    token_delay: float = 0.0
    seen: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, body: dict[str, Any]) -> Say:
        question = last_question(body)
        whole = prompt_text(body)
        found = next((said for part, said in self.answers.items() if part in question), None)
        if found is None:
            found = self._entry(question, whole) or self.default
        said = Say(found) if isinstance(found, str) else Say(**vars(found))
        if not tells_apart(self.wrong):
            return said
        with self.lock:
            times = self.seen[whole] = self.seen.get(whole, 0) + 1
        drifts = ("not repeatable" in self.wrong and times > 1) or ("batch differs" in self.wrong and self.busy > 1)
        if "warm differs" in self.wrong and times > 1 and _ENTRY.search(whole):
            drifts = True
        return Say("Another answer. " + (said.content or "")) if drifts else said

    def _entry(self, question: str, whole: str) -> str | None:
        asked = _KEY.search(question[-200:])
        if not asked or not _ENTRY.search(whole):
            return None
        if self.needle_limit is not None and count_tokens(whole) > self.needle_limit:
            return "!" * 200
        key = asked[1] or asked[2]
        return next((value for name, value in _ENTRY.findall(whole) if name == key), "None")


def tells_apart(wrong: set[str]) -> bool:
    return bool(wrong & {"not repeatable", "batch differs", "warm differs"})


def prompt_text(body: dict[str, Any]) -> str:
    if "prompt" in body:
        return str(body["prompt"])
    return "\n".join(_text(one.get("content")) for one in body["messages"])


def last_question(body: dict[str, Any]) -> str:
    return str(body["prompt"]) if "prompt" in body else _text(body["messages"][-1].get("content"))


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json({"data": [{"id": "m", "root": "/checkpoint", "max_model_len": self.fake.limit}]})
        elif self.path == "/metrics" and "no metrics" not in self.fake.wrong:
            text = f"process_start_time_seconds {self.fake.started}\nvllm:num_requests_running {self.fake.running}\n"
            self._send(200, text.encode(), "text/plain")
        else:
            self._json({"error": "not here"}, 404)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            body = json.loads(raw)
        except ValueError:
            return self._json(*self._refusal("not JSON"))
        if self.path == "/tokenize":
            if "no tokenize" in self.fake.wrong:
                return self._json({"error": "not here"}, 404)
            return self._json({"count": self._prompt_tokens(body)})
        with self.fake.lock:
            self.fake.asked.append(body)
            self.fake.headers.append(dict(self.headers))
        problem = self._problem(body)
        if problem:
            return self._json(*self._refusal(problem))
        return self._answer(body)

    def _refusal(self, problem: str) -> tuple[dict[str, Any], int]:
        if "accepts anything" in self.fake.wrong:
            return {"choices": [{"message": {"content": "Sure."}, "finish_reason": "stop"}]}, 200
        return {"error": problem, "seen": self.headers.get("Authorization")}, 500 if "500" in self.fake.wrong else 400

    def _problem(self, body: dict[str, Any]) -> str | None:
        if not isinstance(body.get("messages"), list) and "prompt" not in body:
            return "no messages"
        if body.get("model") != "m":
            return "no such model"
        if not isinstance(body.get("temperature", 0), int | float) or body.get("max_tokens", 1) < 1:
            return "a wrong value"
        if self._prompt_tokens(body) + body.get("max_tokens", 0) > self.fake.limit:
            return "longer than the context"
        return None

    def _prompt_tokens(self, body: dict[str, Any]) -> int:
        return 4 + count_tokens(prompt_text(body))

    def _answer(self, body: dict[str, Any]) -> None:
        fake, question = self.fake, last_question(body)
        with fake.lock:
            fake.busy += 1
            fake.most_busy = max(fake.most_busy, fake.busy)
        try:
            for part, seconds in fake.hangs.items():
                if part in question:
                    time.sleep(seconds)
            status = next((status for part, status in fake.fails.items() if part in question), None)
            if status:
                return self._json({"error": "as the test wants", "seen": self.headers.get("Authorization")}, status)
            if fake.token_delay and not body.get("stream"):
                time.sleep(fake.token_delay)
            said = self._cut(fake.say(self._meant(body)), body)
            return self._stream(said, body) if body.get("stream") else self._plain(said, body)
        finally:
            with fake.lock:
                fake.busy -= 1

    def _meant(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer for this request; with swapped streams, that of a concurrent one."""
        with self.fake.lock:
            before, self.fake.streamed = self.fake.streamed, body if body.get("stream") else None
        swapped = "swaps streams" in self.fake.wrong and body.get("stream") and self.fake.busy > 1
        return before if swapped and before else body

    def _cut(self, said: Say, body: dict[str, Any]) -> Say:
        """Apply stop strings and max_tokens."""
        text = said.content
        if text is None:
            return said
        if "ignores stop" not in self.fake.wrong:
            for stop in body.get("stop") or ():
                text = text.split(stop)[0]
        written = tokens(text)
        if len(written) > body.get("max_tokens", 10**9) and "ignores max_tokens" not in self.fake.wrong:
            text, said.finish_reason = "".join(written[: body["max_tokens"]]), "length"
        said.content = text
        return said

    def _usage(self, said: Say, body: dict[str, Any]) -> dict[str, int]:
        prompt = self._prompt_tokens(body) + (7 if "miscounts" in self.fake.wrong else 0)
        written = len(tokens(said.content or "")) + len(tokens(said.reasoning or ""))
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _logprobs(self, said: Say, body: dict[str, Any]) -> Any:
        if not body.get("logprobs") or "no logprobs" in self.fake.wrong:
            return None
        value = float("nan") if "nan logprobs" in self.fake.wrong else -0.01
        other = 0.0 if "not greedy" in self.fake.wrong else -5.0
        told = []
        for token in tokens(said.content or ""):
            top = [{"token": token, "logprob": value}, {"token": "x", "logprob": other}]
            told.append({"token": token, "logprob": value, "top_logprobs": top})
        return {"content": told}

    def _plain(self, said: Say, body: dict[str, Any]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": said.content, "reasoning_content": said.reasoning}
        message |= {"tool_calls": said.tool_calls} if said.tool_calls else {}
        choice = {"message": message, "finish_reason": said.finish_reason, "logprobs": self._logprobs(said, body)}
        usage = {} if "no usage" in self.fake.wrong else {"usage": self._usage(said, body)}
        self._json({"choices": [choice], **usage})

    def _stream(self, said: Say, body: dict[str, Any]) -> None:
        fake = self.fake
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        with fake.lock:
            fake.running += 1
        try:
            self._events(said, body)
        except OSError:
            if "runs on" in fake.wrong:
                return
        with fake.lock:
            fake.running -= 1

    def _events(self, said: Say, body: dict[str, Any]) -> None:
        wrong = self.fake.wrong
        pieces = tokens(said.content or "")
        if "cuts characters" in wrong:
            pieces = [piece if piece.isascii() else "\ufffd" for piece in pieces]
        for number, piece in enumerate(pieces):
            if "drops a chunk" in wrong and number == len(pieces) // 2:
                continue
            if "closes streams" in wrong and number == 2:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            raw = json.dumps({"choices": [{"delta": {"content": piece}}]}, ensure_ascii=False).encode()
            self._event(raw.replace("道".encode(), b"\xe9\x81") if "bad bytes" in wrong else raw)
            if self.fake.token_delay:
                time.sleep(self.fake.token_delay)
        if said.tool_calls:
            calls = [{"index": n, **call} for n, call in enumerate(said.tool_calls)]
            self._event(json.dumps({"choices": [{"delta": {"tool_calls": calls}}]}).encode())
        self._event(json.dumps({"choices": [{"delta": {}, "finish_reason": said.finish_reason}]}).encode())
        if "no usage" not in wrong:
            self._event(json.dumps({"choices": [], "usage": self._usage(said, body)}).encode())
        if "no done" not in wrong:
            self._event(b"[DONE]")

    def _event(self, data: bytes) -> None:
        self.wfile.write(b"data: " + data + b"\n\n")
        self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class FakeServer:
    """The server in its own threads."""

    def __init__(self, fake: Fake) -> None:
        handler = type("FakeHandler", (Handler,), {"fake": fake})
        self._server = QuietServer(("127.0.0.1", 0), handler)
        self.fake, self.url = fake, f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
