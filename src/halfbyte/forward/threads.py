"""Chunks or experts side by side, each on one core, results in order: the number of threads never changes a bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch

from halfbyte.machine.interrupts import noted_ctrl_c

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def single_threaded() -> Generator[None, None, None]:
    """PyTorch computes on the thread that asks, and on no others: those have work of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[S], T], items: Iterable[S], threads: int = 1) -> Iterator[T]:
    """Yield the results in the order of the items; at most `threads` are being worked on, and as many wait.

    With 0 the caller works, and PyTorch on as many threads as it is set to: an engine allows nobody to change that.
    """
    if threads == 0:
        yield from map(work, items)
        return
    if threads == 1:
        with single_threaded():
            yield from map(work, items)
        return
    todo, waiting = iter(items), deque[Future[T]]()
    # The setting is each thread's own for OpenMP: a new thread would begin with one per core.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    with single_threaded(), pool, noted_ctrl_c() as check:
        try:
            waiting.extend(pool.submit(work, item) for item in islice(todo, 2 * threads))
            while waiting:
                result = waiting.popleft().result()
                check()
                waiting.extend(pool.submit(work, item) for item in islice(todo, 1))
                yield result
        finally:
            for future in waiting:
                future.cancel()
