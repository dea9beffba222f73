"""An OpenAI-compatible server whose answers come from a function: a body in, a Said out. It streams letter by
letter.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from quiet_server import QuietServer


@dataclass
class Said:
    content: str | None = None
    reasoning: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    logprobs: Any = None
    status: int = 200

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


def call(name: str, arguments: Any, index: int = 0, id: str | None = None) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": f"functions.{name}:{index}" if id is None else id,
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


class ScriptedServer:
    def __init__(self, say: Callable[[dict[str, Any]], Said], limit: int = 4096) -> None:
        self.asked: list[dict[str, Any]] = []
        self.sent = 0  # characters of streams
        self.say, self.limit = say, limit
        handler = type("Scripted", (_Handler,), {"owner": self})
        self._server = QuietServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: ScriptedServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = {"data": [{"id": "m", "root": "m", "max_model_len": self.owner.limit}]}
        self._json(models if self.path == "/v1/models" else {}, 200 if self.path == "/v1/models" else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._json({}, 404)
            return
        self.owner.asked.append(body)
        said = self.owner.say(body)
        if said.status != 200:
            self._json({"error": "as the test wants"}, said.status)
        elif body.get("stream"):
            self._stream(said)
        else:
            message = {"content": said.content, "reasoning_content": said.reasoning, "tool_calls": said.calls}
            choice: dict[str, Any] = {"finish_reason": said.finish_reason, "logprobs": said.logprobs}
            choice |= {"message": message} if "messages" in body else {"text": said.content or ""}
            self._json({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}})

    def _stream(self, said: Said) -> None:
        self.send_response(200)
        self.end_headers()
        for key, text in (("reasoning_content", said.reasoning), ("content", said.content)):
            for letter in text or "":
                self._delta({key: letter})
                self.owner.sent += 1
        for index, one in enumerate(said.calls):
            self._delta({"tool_calls": [{"index": index, **one}]})
        self._event({"choices": [{"delta": {}, "finish_reason": said.finish_reason}]})
        self.wfile.write(b"data: [DONE]\n\n")

    def _delta(self, delta: dict[str, Any]) -> None:
        self._event({"choices": [{"delta": delta}]})

    def _event(self, value: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
