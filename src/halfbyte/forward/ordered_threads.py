"""Run work in parallel, one core per item, with results in order and independent of the number of threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import torch

from halfbyte.machine.interrupts import deferred_ctrl_c

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def single_threaded() -> Generator[None, None, None]:
    """Restrict PyTorch to one thread per caller."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[S], T], items: Iterable[S], threads: int = 1) -> Iterator[T]:
    """Yield the results in the order of the items; at most `threads` items run and as many are queued.

    With 0 threads, work runs in the caller with PyTorch's current setting, which must not change inside an engine.
    """
    if threads == 0:
        yield from map(work, items)
        return
    if threads == 1:
        with single_threaded():
            yield from map(work, items)
        return
    remaining, queue = iter(items), deque[Future[T]]()
    # The OpenMP setting is per thread: a new thread would default to one per core.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    with single_threaded(), pool, deferred_ctrl_c() as check:
        try:
            queue.extend(pool.submit(work, item) for item in islice(remaining, 2 * threads))
            while queue:
                result = queue.popleft().result()
                check()
                queue.extend(pool.submit(work, item) for item in islice(remaining, 1))
                yield result
        finally:
            for future in queue:
                future.cancel()
