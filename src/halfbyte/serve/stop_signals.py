"""Handle Ctrl-C, SIGTERM and SIGHUP while an engine runs: the first stops it gracefully, the second kills it.

Only the first signal raises `Stopped`, so later ones cannot interrupt the shutdown.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A stop requested by a signal; `exit_code` is the shell's code for that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def stop_signals(at_once: Callable[[], None]) -> Generator[None]:
    """Raise Stopped on the first signal; call `at_once` on each further one."""
    if threading.current_thread() is not threading.main_thread():  # handlers can only be set in the main thread
        yield
        return
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise Stopped(number)
        at_once()

    # Signals ignored by the parent (nohup, a shell's background job) stay ignored.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
