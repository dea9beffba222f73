"""Print the progress of an evaluation: occasional lines with the rate and the time left."""

from __future__ import annotations

import time

from halfbyte.ui.console import Output

EVERY_S = 10.0
_TRUSTED = 3  # requests before a rate is shown


class ProgressLines:
    """Print the current task, finished requests, rate and time left to stderr."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._title = ""
        self._start, self._last_line, self._first = 0.0, 0.0, 0

    def __call__(self, title: str, done: int, total: int) -> None:
        """Record the progress. Print it if the last line is old, or at the end."""
        now = time.monotonic()
        if title != self._title:
            self._title, self._start, self._last_line, self._first = title, now, now, done
            if done and done < total:
                self._out.note(f"{title}: {done:,} of {total:,} requests already finished")
        if done == total:
            how = " (all from an earlier run)" if self._first == total else f" in {now - self._start:.0f} s"
            self._out.note(f"{title}: {total:,} requests finished{how}")
        elif now - self._last_line >= EVERY_S and done - self._first >= _TRUSTED:
            self._last_line = now
            rate = (done - self._first) / (now - self._start)
            self._out.note(f"{title}: {done:,} of {total:,}, {rate:.1f}/s, {_left((total - done) / rate)} left")


def _left(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004
