"""Resource limits of a program. The defaults are enough for small programs and stop harmful ones quickly."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits. A program that reaches one is killed or gets an error."""

    seconds: float = 10.0  # wall clock
    memory_nbytes: int = 1_000_000_000  # address space of each process, and resident memory of all processes together
    processes: int = 32  # including the program itself; threads count
    file_nbytes: int = 10_000_000  # one file
    disk_nbytes: int = 50_000_000  # all files, which are in memory
    open_files: int = 64
    output_nbytes: int = 1_000_000  # each of stdout and stderr

    @property
    def cpu_seconds(self) -> int:
        """Return the CPU time of one process: slightly more than the wall clock, which must run out first."""
        return math.ceil(self.seconds) + 1

    def rlimits(self) -> dict[str, int]:
        """Return the kernel limits by their names in Python's `resource`."""
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
