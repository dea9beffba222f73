"""Reading on: after a cut, an error of the server, or a request to slow down, from the byte where it stopped.

Attempts are counted while nothing comes; a megabyte that came is a reason to begin counting anew. So a poor line takes
long and a dead one ends within minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from halfbyte.errors import MachineError
from halfbyte.source.remote.files import Files
from halfbyte.terminal.units import size

TRIES = 8  # in a row, without a megabyte between them
FIRST_WAIT_S = 1.0
MOST_WAIT_S = 300.0  # the Hub counts requests in windows of five minutes
_ENOUGH_NBYTES = 1 << 20

Tell = Callable[[str], None]


class PassingError(Exception):
    """Something that may be over when one asks again."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.what, self.wait_s = what, wait_s


class StoppedError(Exception):
    """Nobody waits for the bytes any more."""


def patiently(
    files: Files, name: str, begin: int, end: int, *, stop: threading.Event, tell: Tell | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a range, however often the connection is lost on the way."""
    at, tries, since = begin, 0, begin
    while at < end:
        try:
            for chunk in files.stream(name, at, end):
                at += len(chunk)
                yield chunk
                if stop.is_set():
                    raise StoppedError
            if at < end:
                raise PassingError("the answer ended early")
        except PassingError as error:
            tries, since = (tries + 1, since) if at - since < _ENOUGH_NBYTES else (1, at)
            if tries >= TRIES:
                what = f"'{name}' cannot be read: {error.what} ({TRIES} times, at {size(at)} of {size(end)})"
                fix = "check the network, then run the same command again: it goes on"
                raise MachineError(what, where=files.where, fix=fix) from None
            seconds = min(error.wait_s if error.wait_s is not None else FIRST_WAIT_S * 2 ** (tries - 1), MOST_WAIT_S)
            if tell is not None:
                tell(f"{error.what}; reading on in {seconds:.0f} s ({name}, {size(at)} of {size(end)})")
            if stop.wait(seconds):
                raise StoppedError from None


def read_whole(files: Files, name: str, begin: int, end: int, stop: threading.Event | None = None) -> bytes:
    """Return a range that fits into memory."""
    return b"".join(patiently(files, name, begin, end, stop=stop or threading.Event()))
