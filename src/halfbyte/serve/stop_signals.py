"""Ctrl-C, SIGTERM and a closed terminal while an engine runs: the first one stops politely, the second at once.

The first raises `Stopped` where the program is; from then on nothing is raised any more, so that stopping the engine is
never interrupted, and a second signal only shortens it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody wants an end, which is no error; `exit_code` is what a shell expects after such a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def stop_signals(at_once: Callable[[], None]) -> Generator[None]:
    """Raise Stopped at the first signal; call `at_once` at each further one."""
    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield
        return
    came: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise Stopped(number)
        at_once()

    # A signal that whoever started us ignores (nohup, a shell's background job) stays ignored.
    before = {one: signal.getsignal(one) for one in SIGNALS}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(one, handle)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler or signal.SIG_DFL)
