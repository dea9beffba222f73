"""A proxy for a healthy server that starts to hang after a number of requests, in several ways."""

from __future__ import annotations

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from quiet_server import QuietServer

PAUSE_S = 0.1  # between two bytes that drip: shorter than any timeout of a test
# Data sent immediately, and data sent byte by byte; None: nothing follows.
HANGS: dict[str, tuple[bytes, bytes | None]] = {
    "never answers": (b"", None),
    "sends headers and stalls": (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", None),
    "drips its headers": (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a"),
    "drips its body": (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b" "),
    "drips the size of a chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    "drips the text of an error": (b"HTTP/1.1 503 Busy\r\nContent-Length: 999\r\n\r\n", b"x"),
    "stops in the middle of a stream": (
        b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"index": 0, "delta": {"content": "One two"}}]}\n\n',
        None,
    ),
}


class HungProxy:
    """Forward requests until `healthy` of them were answered; `hung` counts those after. GETs always pass."""

    def __init__(self, upstream: str, how: str, healthy: int = 0) -> None:
        self.upstream, self.how, self.healthy = upstream.removeprefix("http://"), how, healthy
        self.asked = self.hung = 0
        self.lock = threading.Lock()
        self._server = QuietServer(("127.0.0.1", 0), type("Proxied", (_Handler,), {"owner": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def heal(self) -> None:
        self.healthy = 1 << 60

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: HungProxy

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._pass_on(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.owner.lock:
            self.owner.asked += 1
            hangs = self.owner.asked > self.owner.healthy
            self.owner.hung += hangs
        if not hangs:
            return self._pass_on(body)
        first, drops = HANGS[self.owner.how]
        self.wfile.write(first)
        while self.owner.hung:
            time.sleep(PAUSE_S)
            if drops is not None:
                self.wfile.write(drops)
        return None

    def _pass_on(self, body: bytes) -> None:
        upstream = http.client.HTTPConnection(self.owner.upstream, timeout=30)
        upstream.request(self.command, self.path, body or None, {"Content-Type": "application/json"})
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
