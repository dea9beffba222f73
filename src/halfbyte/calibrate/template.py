"""Render a chat template in a subprocess with a memory limit, a timeout and a minimal environment.

The first line sent to the process is the template, each further line a conversation. A process that does not answer in
time is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halfbyte.machine.python_path import OWN_PYTHON

SECONDS = 20.0  # per conversation; Kimi's template takes 10 ms for a long one
STARTING_SECONDS = 60.0  # to start Python and import jinja2 on a busy machine
_PROGRAM = Path(__file__).with_name("template_process.py")  # does not import halfbyte
_MOST_NBYTES = 1 << 28  # per answer
_PASSED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")


class TemplateError(Exception):
    """Raised if a template is invalid or fails on a conversation."""


class TemplateProcess:
    """Process with one compiled template; thread-safe."""

    def __init__(self, source: str) -> None:
        # Pass only the variables that Python needs, to keep API keys out of the process.
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        command = [*OWN_PYTHON, str(_PROGRAM)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _kill, self._process)
        self._ask(source, STARTING_SECONDS)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render a conversation."""
        return self._ask(variables, SECONDS)["text"]

    def _ask(self, request: Any, seconds: float) -> dict[str, str]:
        with self._lock:
            answer = self._answer(json.dumps(request, default=str).encode() + b"\n", seconds)
        if "error" in answer:
            raise TemplateError(answer["error"])
        return answer

    def _answer(self, line: bytes, seconds: float) -> dict[str, str]:
        reads, writes = self._process.stdout, self._process.stdin
        assert reads is not None
        assert writes is not None
        try:
            writes.write(line)
            writes.flush()
        except OSError:
            raise TemplateError("its process has exited") from None
        poller = select.poll()  # unlike select, supports descriptors above 1,023
        poller.register(reads, select.POLLIN)
        answer = b""
        while not answer.endswith(b"\n"):
            if not poller.poll(seconds * 1000):
                self._end()
                raise TemplateError(f"timed out after {seconds:.0f} s")
            piece = os.read(reads.fileno(), 1 << 20)
            if not piece or len(answer) > _MOST_NBYTES:
                self._end()
                raise TemplateError("its process was killed, or its output is too long")
            answer += piece
        return json.loads(answer)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    process.wait()
