"""Split a byte stream into server-sent events.

An event ends at an empty line. Events are kept as bytes, so characters split across reads stay intact and the proxy
passes on exactly the bytes it received.
"""

from __future__ import annotations

import re
from collections.abc import Generator

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
LONGEST_NBYTES = 1 << 23  # longer than an event with an image; beyond it the stream is passed on unparsed


class EventReader:
    """Splits pieces of a stream into events and buffers only an incomplete one."""

    def __init__(self) -> None:
        self._rest = b""
        self._raw = False

    def feed(self, piece: bytes) -> Generator[bytes]:
        """Yield each completed event, including its empty line."""
        if self._raw:
            yield piece
            return
        searched = max(0, len(self._rest) - 3)
        self._rest += piece
        while (end := _END.search(self._rest, searched)) is not None:
            event, self._rest = self._rest[: end.end()], self._rest[end.end() :]
            searched = 0
            yield event
        if len(self._rest) > LONGEST_NBYTES:
            self._raw = True
            yield self.rest()

    def rest(self) -> bytes:
        """Return the incomplete event at the end of the stream."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes:
    """Return the data of an event; empty for a comment."""
    return b"\n".join(_DATA.findall(event))
