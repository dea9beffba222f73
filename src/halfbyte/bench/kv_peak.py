"""Sample the peak KV cache usage of a server while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from halfbyte.endpoint.metrics_page import Page

EVERY_S = 1.0
_ENDS_WITHIN_S = 15.0  # timeout of a pending request


class KvPeak:
    """A context that sets `peak`, the highest usage as a fraction, or None if the server does not report it."""

    def __init__(self, read: Callable[[], Page | None], every_s: float = EVERY_S) -> None:
        self._read, self._every_s = read, every_s
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.looks = 0
        self.peak: float | None = None

    def __enter__(self) -> KvPeak:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(_ENDS_WITHIN_S)

    def _watch(self) -> None:
        while not self._done.wait(self._every_s):
            page = self._read()
            if page is None or page.kv_use is None:
                return  # the server does not report it
            self.looks += 1
            self.peak = max(page.kv_use, self.peak or 0.0)
