"""How much a program may have of everything. The defaults let a small program pass and stop a harmful one soon."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use; whatever reaches a limit is ended or gets an error."""

    seconds: float = 10.0  # on the wall
    memory_nbytes: int = 1_000_000_000  # addresses of one process, and what all of them together really hold
    processes: int = 32  # with the program's own, and threads count
    file_nbytes: int = 10_000_000  # one file
    disk_nbytes: int = 50_000_000  # all files: they lie in memory
    open_files: int = 64
    output_nbytes: int = 1_000_000  # each of stdout and stderr

    @property
    def cpu_seconds(self) -> int:
        """Return the processor time of one process: a bit more than the wall clock, which is to speak first."""
        return math.ceil(self.seconds) + 1

    def of_the_kernel(self) -> dict[str, int]:
        """Return what the kernel enforces, by its names in Python's `resource`."""
        return {
            "RLIMIT_AS": self.memory_nbytes,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_nbytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 65536,
            "RLIMIT_MSGQUEUE": 0,
        }
