"""How full the server's KV cache gets while a block runs: a look at /metrics afterwards finds it empty again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from halfbyte.validate.bench.metrics_page import Page

EVERY_S = 1.0
_ENDS_WITHIN_S = 15.0  # the look that is under way


class KvPeak:
    """A context; `most` is the largest use that was seen, as a share, or None where the server does not tell."""

    def __init__(self, look: Callable[[], Page | None], every_s: float = EVERY_S) -> None:
        self._look, self._every_s = look, every_s
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self.looks = 0
        self.most: float | None = None

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
            page = self._look()
            if page is None or page.kv_use is None:
                return  # it has no such figure, and will not have one later
            self.looks += 1
            self.most = max(page.kv_use, self.most or 0.0)
