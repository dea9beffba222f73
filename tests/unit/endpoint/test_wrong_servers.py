"""Addresses with another or no server: one clear error from every command, before any other work."""

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest
from quiet_server import QuietServer

from halfbyte.cli.main import run

PAGE = (
    "<!DOCTYPE html>\n<html>\n<head><style>body {{}}</style>\n<title>Welcome to\n nginx!</title></head>"
    "<body>{}</body></html>"
).format("<p>hello</p>\n" * 200)
COMMANDS = (("probe",), ("eval", "--suite", "mini"), ("bench",))


@pytest.fixture
def answering():
    """Serve one status, type and text under every path; return the address and the requested paths."""
    servers = []

    def serve(status, kind, text):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - as http.server names it

            def log_message(self, *_):
                pass

        server = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}", asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("status", "kind", "text", "what"),
    [
        (200, "text/html", PAGE, "not an OpenAI-compatible server: it returned an HTML page, 'Welcome to nginx!'"),
        (
            404,
            "text/html",
            PAGE,
            "not an OpenAI-compatible server: it returned HTTP 404: an HTML page, 'Welcome to nginx!'",
        ),
        (404, "text/plain", "404 page not found\n", "not an OpenAI-compatible server: it returned HTTP 404: "),
        (200, "text/plain", "It works!\n" * 99, "not an OpenAI-compatible server: it returned the text 'It works! "),
        (200, "application/json", '{"ok": true}', "not an OpenAI-compatible server: it returned JSON without a list"),
        (200, "text/html", "", "not an OpenAI-compatible server: it returned an empty response"),
        (503, "text/html", PAGE, "the server is not ready: HTTP 503: an HTML page, 'Welcome to nginx!'"),
        (401, "application/json", "{}", "the server requires an API key (HTTP 401)"),
    ],
)
def test_a_wrong_server_gives_one_error(answering, command, status, kind, text, what, tmp_path, monkeypatch, capsys):
    for name in ("HALFBYTE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    url, asked = answering(status, kind, text)
    assert run([*command, url, "-o", str(tmp_path / "out")]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert lines[0].startswith(f"\u2717 {what}")
    assert lines[1] == f"  where {url}/v1/models"
    assert lines[2].startswith("  fix   ")
    assert len(said.err) < 600
    assert "<" not in said.err
    assert asked == ["/v1/models"]
    assert not (tmp_path / "out").exists()


def test_eval_asks_the_servers_before_the_hub(answering, tmp_path):
    hub, asked = answering(503, "text/plain", "no hub here")
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf")}
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        environment.pop(name, None)
    wrong, _ = answering(404, "text/html", PAGE)
    models = '{"data": [{"id": "m", "max_model_len": 4096}]}'
    right, _ = answering(200, "application/json", models)
    for words, what in (
        (["http://127.0.0.1:9"], "the server does not respond"),
        ([wrong], "not an OpenAI-compatible server"),
        ([right, "--against", wrong], "not an OpenAI-compatible server"),
        ([right, "--model", "n"], "the server has no model 'n'"),
    ):
        command = [sys.executable, "-m", "halfbyte", "eval", *words, "--suite", "kimi-card", "-o", "out"]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        assert what in done.stderr
        assert asked == []
        assert time.monotonic() - start < 20, "the server is asked first"
