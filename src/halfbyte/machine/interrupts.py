"""Hold back two interruptions of this process: Ctrl-C, and scans of the garbage collector."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_ctrl_c() -> Generator[Callable[[], None]]:
    """Yield a function that raises a pending KeyboardInterrupt; one still pending on exit is delivered then.

    Python raises KeyboardInterrupt between any two bytecodes of the main thread. Inside `submit` or `wait` of a thread
    pool that can leave a lock of the pool held forever, and the run deadlocks.
    """
    if threading.current_thread() is not threading.main_thread():  # Python raises it only in the main thread
        yield lambda: None
        return
    pending: list[tuple[int, Any]] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pending.append((number, frame)))

    def check() -> None:
        if pending:
            pending.clear()
            raise KeyboardInterrupt

    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, previous)
        if pending and callable(previous):
            previous(*pending[0])


@contextmanager
def gc_paused() -> Generator[None]:
    """Disable the collector in this context, then move all objects to the oldest generation.

    Reading the headers of 208,550 tensors takes 1.8 s with it paused, 2.9 s without. Without the move, the next
    allocation would trigger a scan of all the new objects.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # moves them from the permanent to the oldest generation
        gc.enable()
