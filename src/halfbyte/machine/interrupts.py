"""Defer Ctrl-C while thread-pool locks may be held.

Python raises KeyboardInterrupt between any two bytecodes of the main thread. Inside `submit` or `wait` that can leave a
lock of the pool held forever, and the run deadlocks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_ctrl_c() -> Generator[Callable[[], None]]:
    """Yield a function that raises a pending KeyboardInterrupt; one still pending on exit is delivered then."""
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
