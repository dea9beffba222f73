"""Split rows into chunks and run them on threads.

Chunks depend only on the shape, not on the number of threads, so error sums are the same on every machine. Kernels
release the GIL, so each thread uses a core.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from halfbyte.errors import UsageError
from halfbyte.machine.resources import usable_cores

T = TypeVar("T")

_WEIGHTS = 1 << 22  # large enough to amortize table construction, small enough to split an expert over two cores
_ROWS = 128  # chunks start where FP8 blocks start


def row_chunks(shape: tuple[int, int]) -> list[slice]:
    """Split N rows into chunks of about four million weights."""
    n, k = shape
    step = max(_ROWS, _WEIGHTS // k // _ROWS * _ROWS)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _worker_count(threads: int | None, chunks: int) -> int:
    if threads is not None and (type(threads) is not int or threads < 1):
        raise UsageError(f"invalid threads {threads!r}", fix="pass a number of at least 1, or None for one per core")
    return min(threads or usable_cores(), chunks)


def on_chunks(work: Callable[[slice], T], shape: tuple[int, int], threads: int | None) -> list[T]:
    """Run `work` on every chunk and return the results in row order."""
    chunks = row_chunks(shape)
    workers = _worker_count(threads, len(chunks))
    if workers == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, chunks))
