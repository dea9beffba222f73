"""How far a run is: a line now and then with the rate and the time that is left, once there is something to tell."""

from __future__ import annotations

import time

from halfbyte.terminal.console import Output

EVERY_S = 10.0
_TRUSTED = 3  # requests before a rate is one


class ProgressLines:
    """Says on stderr what is asked, how much of it is finished, how fast, and until when."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._what = ""
        self._start, self._said, self._first = 0.0, 0.0, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note of the progress; say it if the last time was long ago, or if it is the last."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._start, self._said, self._first = what, now, now, done
            if done and done < total:
                self._out.note(f"{what}: {done:,} of {total:,} requests are finished already")
        if done == total:
            again = " (all from an earlier run)" if self._first == total else f" in {now - self._start:.0f} s"
            self._out.note(f"{what}: {total:,} requests finished{again}")
        elif now - self._said >= EVERY_S and done - self._first >= _TRUSTED:
            self._said = now
            rate = (done - self._first) / (now - self._start)
            self._out.note(f"{what}: {done:,} of {total:,}, {rate:.1f} a second, {_left((total - done) / rate)} left")


def _left(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004
