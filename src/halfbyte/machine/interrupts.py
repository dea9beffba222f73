"""Ctrl-C where a pool's locks are: noted, and raised at a place of our choosing.

Python raises KeyboardInterrupt between any two steps of the main thread. In the middle of `submit` or `wait` that can
leave a lock of the pool taken for ever; its threads wait for it, and the run waits for its threads.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_ctrl_c() -> Generator[Callable[[], None]]:
    """Yield what raises a Ctrl-C that came meanwhile; one that nobody asked for is raised at the end."""
    if threading.current_thread() is not threading.main_thread():  # where Python never raises it
        yield lambda: None
        return
    came: list[tuple[int, Any]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))

    def check() -> None:
        if came:
            came.clear()
            raise KeyboardInterrupt

    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(*came[0])
