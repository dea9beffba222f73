"""What came of a program."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Literal

Ended = Literal["exit", "time", "memory", "output", "killed"]
_SIGNALLED = 128  # a shell's way to say "ended by signal n": 128 + n
_LAST_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class Ran:
    """One run. `exit`: by itself, `code` says how; else by which limit; `killed`: by a signal, its own or the kernel's.

    A program that calls `sys.exit(139)` looks like one that crashed: namespaces report both alike.
    """

    ended: Ended
    code: int | None  # None where it was stopped
    stdout: str
    stderr: str
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Say whether it came to its end with exit code 0."""
        return self.ended == "exit" and self.code == 0


def how_it_ended(code: int, stderr: str) -> Ended:
    """Read an exit code of a program that nobody stopped."""
    number = -code if code < 0 else code - _SIGNALLED
    if number == signal.SIGXCPU:
        return "time"
    if 0 < number <= _LAST_SIGNAL:
        return "killed"
    last = stderr.rstrip().rpartition("\n")[2]
    return "memory" if code != 0 and last.startswith("MemoryError") else "exit"
