"""Rows in chunks, chunks on threads.

Chunks are fixed by the shape and never by the number of threads, so error sums are the same on every machine. Kernels
release the GIL, so threads are cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from halfbyte.errors import UsageError
from halfbyte.machine.cgroup import cpu_limit

T = TypeVar("T")

_WEIGHTS = 1 << 22  # long enough that tables are made rarely, short enough that two cores share an expert
_ROWS = 128  # chunks start where FP8 blocks start


def row_chunks(shape: tuple[int, int]) -> list[slice]:
    """Split N rows so that a chunk has about four million weights."""
    n, k = shape
    step = max(_ROWS, _WEIGHTS // k // _ROWS * _ROWS)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def usable_cores() -> int:
    """Cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()  # a container's share may be less than the machine has
    return cores if limit is None else max(1, min(cores, int(limit)))


def run_threads() -> int:
    """Threads of a run: one a core, and two more, so that some compute while others wait for the disk."""
    return usable_cores() + 2


def _worker_count(threads: int | None, chunks: int) -> int:
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"threads is {threads!r}", fix="give a number from 1 on, or none for one a core")
    return min(threads or usable_cores(), chunks)


def on_chunks(work: Callable[[slice], T], shape: tuple[int, int], threads: int | None) -> list[T]:
    """Run `work` on every chunk; results come in row order."""
    chunks = row_chunks(shape)
    workers = _worker_count(threads, len(chunks))
    if workers == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, chunks))
