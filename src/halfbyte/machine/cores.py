"""How many cores this process may use, and how many threads a run takes."""

from __future__ import annotations

import os

from halfbyte.machine.cgroup import cpu_limit


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()  # a container's limit may be lower than the machine's cores
    return cores if limit is None else max(1, min(cores, int(limit)))


def run_threads() -> int:
    """Return the number of threads of a run: one per core, and two more to overlap disk I/O."""
    return usable_cores() + 2
