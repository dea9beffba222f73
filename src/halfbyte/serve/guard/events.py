"""Server-sent events in a stream of bytes.

An event ends at an empty line. It is cut out as bytes, so that a character which arrives in two pieces is whole again,
and so that what is passed on is what came.
"""

from __future__ import annotations

import re
from collections.abc import Generator

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_DATA = re.compile(rb"^data: ?(.*?)\r?$", re.MULTILINE)
LONGEST_NBYTES = 1 << 23  # a picture in an event is below this; a stream without empty lines is no such stream


class EventReader:
    """Cuts events out of pieces and keeps only what has no end yet."""

    def __init__(self) -> None:
        self._rest = b""
        self._raw = False

    def feed(self, piece: bytes) -> Generator[bytes]:
        """Yield each event that is complete now, with its empty line."""
        if self._raw:
            yield piece
            return
        searched = max(0, len(self._rest) - 3)
        self._rest += piece
        while (found := _END.search(self._rest, searched)) is not None:
            event, self._rest = self._rest[: found.end()], self._rest[found.end() :]
            searched = 0
            yield event
        if len(self._rest) > LONGEST_NBYTES:
            self._raw = True
            yield self.rest()

    def rest(self) -> bytes:
        """Return what had no end when the stream had."""
        rest, self._rest = self._rest, b""
        return rest


def data_of(event: bytes) -> bytes:
    """Return what an event carries; nothing for a comment."""
    return b"\n".join(_DATA.findall(event))
