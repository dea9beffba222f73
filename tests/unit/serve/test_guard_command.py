"""`halfbyte serve --guard`: rejected input, and serving until it is stopped."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler

import pytest
from quiet_server import QuietServer

from halfbyte.cli.main import run

pytest.importorskip("aiohttp")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["OUT"], "cannot serve OUT"),
        (["OUT", "--run"], "cannot serve OUT"),
        (["--run"], "--run has no effect with --guard URL"),
        (["--gpus", "8xB200"], "--gpus has no effect with --guard URL"),
        (["--text-only"], "--text-only has no effect with --guard URL"),
        (["--then", "audit"], "--then has no effect with --guard URL"),
    ],
)
def test_guard_refuses_invalid_options(words, said, capsys):
    assert run(["serve", "--guard", "http://127.0.0.1:8000", *words]) == 2
    assert said in capsys.readouterr().err


def test_guard_needs_a_server_or_run(capsys):
    assert run(["serve", "OUT", "--guard"]) == 2
    assert "pass its URL, or use serve OUT --run --guard" in capsys.readouterr().err


def test_guard_refuses_an_invalid_url_and_its_own_address(capsys):
    assert run(["serve", "--guard", "ftp://x"]) == 2
    assert "is not a valid server URL" in capsys.readouterr().err
    assert run(["serve", "--guard", "http://127.0.0.1:18177", "--port", "18177"]) == 2
    assert "cannot listen on its server's port" in capsys.readouterr().err


def test_a_port_in_use_is_reported_in_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert run(["serve", "--guard", "http://127.0.0.1:8000", "--port", str(port)]) == 3
    said = capsys.readouterr().err
    assert f"port {port} is in use" in said and "Traceback" not in said


class Looping(BaseHTTPRequestHandler):
    """A model that repeats one word endlessly."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        event = {"choices": [{"index": 0, "delta": {"content": "hairs "}, "finish_reason": None}]}
        for _ in range(5000):
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *_):
        pass


def test_guard_serves_until_it_is_stopped():
    behind = QuietServer(("127.0.0.1", 0), Looping)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--guard", f"http://127.0.0.1:{behind.server_port}/v1", "--port", str(port)]
    with subprocess.Popen(
        [sys.executable, "-m", "halfbyte", *words], stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            assert "forwards requests to" in process.stderr.readline()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                b'{"stream": true}',
                {"Content-Type": "application/json"},
            )
            raw = urllib.request.urlopen(request, timeout=20).read()
            process.send_signal(signal.SIGINT)
            started = time.monotonic()
            rest = process.communicate(timeout=20)[1]
        finally:
            process.kill()
            behind.shutdown()
    assert b'"finish_reason":"repetition"' in raw and raw.endswith(b"data: [DONE]\n\n")
    assert process.returncode == 0 and time.monotonic() - started < 10
    assert "stopped a loop" in rest and "'hairs'" in rest and "Traceback" not in rest
