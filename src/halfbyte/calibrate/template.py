"""A chat template in a process of its own, with little memory, no keys, and an end.

The first line tells the process the template, each further one a conversation. One that does not answer is killed.
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

from halfbyte.machine.own_python import OWN_PYTHON

SECONDS = 20.0  # for one conversation; Kimi's template takes a hundredth of one for a long one
STARTING_SECONDS = 60.0  # until Python and jinja2 are there, on a busy machine
_PROGRAM = Path(__file__).with_name("template_process.py")  # needs nothing of halfbyte
_MOST_NBYTES = 1 << 28  # of one answer
_PASSED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")


class TemplateError(Exception):
    """A template that cannot be read, or that refuses a conversation."""


class TemplateProcess:
    """One template, compiled; any thread may ask."""

    def __init__(self, source: str) -> None:
        # Nothing of our environment but what Python needs: a key for a server is none of a template's business.
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        command = [*OWN_PYTHON, str(_PROGRAM)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _kill, self._process)
        self._ask(source, STARTING_SECONDS)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return a conversation as text."""
        return self._ask(variables, SECONDS)["text"]

    def _ask(self, given: Any, seconds: float) -> dict[str, str]:
        with self._lock:
            answer = self._answer(json.dumps(given, default=str).encode() + b"\n", seconds)
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
            raise TemplateError("its process has ended") from None
        waiting = select.poll()  # which, unlike select, also takes descriptors above 1,023
        waiting.register(reads, select.POLLIN)
        found = b""
        while not found.endswith(b"\n"):
            if not waiting.poll(seconds * 1000):
                self._end()
                raise TemplateError(f"it does not end within {seconds:.0f} s")
            piece = os.read(reads.fileno(), 1 << 20)
            if not piece or len(found) > _MOST_NBYTES:
                self._end()
                raise TemplateError("its process was killed, or wrote without end")
            found += piece
        return json.loads(found)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    process.wait()
