"""Measure seconds and bytes by kind of work, summed over threads and lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from halfbyte.engine.backends.cuda.streams import Mark


class Clock:
    """Seconds and bytes by name. Device times are read at the end, because reading them synchronizes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._nbytes: dict[str, int] = {}
        self._marks: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def __call__(self, name: str, nbytes: int = 0) -> Generator[None]:
        """Time a block of this thread."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - begin, nbytes)

    def between(self, name: str, begin: Mark, end: Mark, nbytes: int = 0) -> None:
        """Time the device between two marks."""
        with self._lock:
            self._marks.append((name, begin, end))
            self._nbytes[name] = self._nbytes.get(name, 0) + nbytes

    def _add(self, name: str, seconds: float, nbytes: int) -> None:
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._nbytes[name] = self._nbytes.get(name, 0) + nbytes

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return all times and bytes; synchronizes."""
        for name, begin, end in self._marks:
            end.wait()
            self._add(name, begin.seconds_to(end), 0)
        self._marks.clear()
        return {name: {"seconds": self._seconds[name], "nbytes": self._nbytes[name]} for name in self._seconds}
