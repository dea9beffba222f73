"""A server that echoes requests, and a recorder of what `ps` shows of a command while it runs."""

import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import NamedTuple

from quiet_server import QuietServer

TOLD = ("Authorization", "X-Amz-Security-Token")  # the headers that carry keys


class Echo(BaseHTTPRequestHandler):
    """Echo the request with a status, or close the connection."""

    mode = "401"
    seen: list[str] = []  # noqa: RUF012 - of the class: each test begins a new one

    def _answer(self) -> None:
        sent = " ".join(self.headers.get(name, "") for name in TOLD).strip()
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

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _answer  # noqa: N815 - as http.server calls them

    def log_message(self, *_: object) -> None:
        """Suppress logging."""


@contextmanager
def echoing(mode: str) -> Generator[tuple[str, type[Echo]]]:
    """Yield the address of an echoing server, and its requests."""
    handler = type("Handler", (Echo,), {"mode": mode, "seen": []})
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()


def command_lines(parent: int) -> list[bytes]:
    """Return the command lines of a process and all its descendants, as in `ps`."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {parent}
    while more := {child for child, above in parents.items() if above in family} - family:
        family |= more
    found: list[bytes] = []
    for pid in family:
        try:
            found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            continue
    return found


class Watched(NamedTuple):
    """The end of a command, and all command lines of it and its children."""

    code: int | None  # None: it was killed, because it took too long
    lines: set[bytes]


def watch(argv: list[str], environment: dict[str, str], words: Path, seconds: float) -> Watched:
    """Run a command with its output in a file."""
    lines: set[bytes] = set()
    with words.open("wb") as file:
        process = subprocess.Popen(argv, env=environment, stdout=file, stderr=file, cwd=words.parent)
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < seconds:
            lines.update(command_lines(process.pid))
            time.sleep(0.05)
        code = process.poll()
        process.kill()
        process.wait()
    return Watched(code, lines)
