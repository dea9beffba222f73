"""Keys come from the environment and go to the server, and nowhere else: not to a terminal, a file, or a command line.

The server throws them back at us in every way that servers have, and the commands run with -v, which shows tracebacks.
"""

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from quiet_server import QuietServer

REPOSITORY = Path(__file__).parents[2]
KEY = "sk-canary-4b1d8f0e2a7c9356-of-a-very-long-key"
TOKEN = "hf_canaryQwErTyUiOpAsDfGhJkLzXcVbNm"


class Echo(BaseHTTPRequestHandler):
    """Says what it was sent, under a status, or hangs up."""

    mode = "401"
    seen: list[str] = []  # noqa: RUF012 - of the class: each test begins a new one

    def _answer(self) -> None:
        sent = self.headers.get("Authorization", "")
        type(self).seen.append(sent)
        if self.mode == "hang up":
            self.connection.close()
            return
        text = f'{{"error": {{"message": "bad key {sent}", "code": "{sent}"}}, "data": "{sent}"}}'.encode()
        self.send_response(int(self.mode), f"no {sent}")
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Error-Message", f"denied {sent}")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_HEAD = _answer  # noqa: N815 - as http.server calls them

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(params=["401", "500", "200", "hang up"])
def echo(request):
    """A server that repeats what it was told."""
    handler = type("Handler", (Echo,), {"mode": request.param, "seen": []})
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()


def command_lines(parent: int) -> list[bytes]:
    """What `ps` shows of a process and of all that it started."""
    found: list[bytes] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) == parent or int(fields[1]) == parent:
                found.append((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return found


COMMANDS = {
    "probe": ("probe", "{url}/v1", "-o", "{out}"),
    "eval": ("eval", "{url}/v1", "--suite", "mini", "--data-dir", str(REPOSITORY), "-o", "{out}"),
    "bench": ("bench", "{url}", "-o", "{out}", "--shape", "8:4", "--concurrency", "1"),
    "inspect": ("inspect", "hf://somebody/something"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_key_is_shown_to_nobody(echo, tmp_path, name):
    url, handler = echo
    out = tmp_path / "out"
    argv = [word.format(url=url, out=out) for word in COMMANDS[name]]
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "HALFBYTE_API_KEY": KEY, "OPENAI_API_KEY": KEY,
        "HF_TOKEN": TOKEN, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }  # fmt: skip
    words = (tmp_path / "words.txt").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "halfbyte", "-v", *argv], env=environment, stdout=words, stderr=words, cwd=tmp_path
    )
    lines: set[bytes] = set()
    begin = time.monotonic()
    while process.poll() is None and time.monotonic() - begin < 30:
        lines.update(command_lines(process.pid))
        time.sleep(0.05)
    process.kill()
    words.close()
    assert process.wait() != 0
    assert any(KEY in sent or TOKEN in sent for sent in handler.seen), "the key was never sent: nothing is tested"
    for secret in (KEY, TOKEN):
        for path in (path for path in tmp_path.rglob("*") if path.is_file()):
            assert secret.encode() not in path.read_bytes(), path
        assert not any(secret.encode() in line for line in lines)
