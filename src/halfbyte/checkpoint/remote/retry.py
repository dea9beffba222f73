"""Resume reads after a lost connection, a server error or a rate limit, with exponential backoff.

Progress of one megabyte resets the attempt count, so that a poor connection succeeds slowly and a dead one fails within
minutes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from halfbyte.checkpoint.remote.store import Files
from halfbyte.errors import MachineError
from halfbyte.ui.units import size

TRIES = 8  # consecutive attempts without a megabyte of progress
FIRST_WAIT_S = 1.0
MOST_WAIT_S = 300.0  # the Hub's rate limits use windows of five minutes
_ENOUGH_NBYTES = 1 << 20

Tell = Callable[[str], None]


class TransientError(Exception):
    """An error that a retry may resolve."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.what, self.wait_s = what, wait_s


class StoppedError(Exception):
    """The read was stopped because its result is no longer needed."""


def read_with_retries(
    files: Files, name: str, begin: int, end: int, *, stop: threading.Event, tell: Tell | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a range, resuming after transient errors."""
    at, tries, progress_at = begin, 0, begin
    while at < end:
        try:
            for chunk in files.stream(name, at, end):
                at += len(chunk)
                yield chunk
                if stop.is_set():
                    raise StoppedError
            if at < end:
                raise TransientError("the response ended early")
        except TransientError as error:
            tries, progress_at = (tries + 1, progress_at) if at - progress_at < _ENOUGH_NBYTES else (1, at)
            if tries >= TRIES:
                what = f"'{name}' cannot be read: {error.what} ({TRIES} times, at {size(at)} of {size(end)})"
                fix = "check the network, then run the same command again: it resumes"
                raise MachineError(what, where=files.where, fix=fix) from None
            seconds = min(error.wait_s if error.wait_s is not None else FIRST_WAIT_S * 2 ** (tries - 1), MOST_WAIT_S)
            if tell is not None:
                tell(f"{error.what}; retrying in {seconds:.0f} s ({name}, {size(at)} of {size(end)})")
            if stop.wait(seconds):
                raise StoppedError from None


def read_whole(files: Files, name: str, begin: int, end: int, stop: threading.Event | None = None) -> bytes:
    """Return a byte range that fits in memory."""
    return b"".join(read_with_retries(files, name, begin, end, stop=stop or threading.Event()))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def no_answer(error: BaseException) -> bool:
    """Return whether there was no response: connection error, timeout, or transport error of any httpx package."""
    bases = {base.__name__ for base in type(error).__mro__}
    return "TransportError" in bases or isinstance(error, (ConnectionError, TimeoutError))


def retry_after(error: BaseException) -> float | None:
    """Return the server's Retry-After (a number or a date) in seconds, if present."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after")
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None
