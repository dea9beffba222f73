"""Outcome of a program."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

Ended = Literal["exit", "time", "memory", "output", "killed"]
_SIGNALLED = 128  # shells report signal n as exit code 128 + n
_LAST_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of one run: `exit` (ended on its own, with `code`), `killed` (by a signal) or the exceeded limit.

    `sys.exit(139)` looks like a crash, because namespaces report both the same way.
    """

    ended: Ended
    code: int | None  # None if the program was killed
    stdout: str
    stderr: str
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Return whether the program exited with code 0."""
        return self.ended == "exit" and self.code == 0


def how_it_ended(code: int, stderr: str) -> Ended:
    """Classify the exit code of a program that ended before any limit."""
    number = -code if code < 0 else code - _SIGNALLED
    if number == signal.SIGXCPU:
        return "time"
    if 0 < number <= _LAST_SIGNAL:
        return "killed"
    last = stderr.rstrip().rpartition("\n")[2]
    return "memory" if code != 0 and last.startswith("MemoryError") else "exit"
