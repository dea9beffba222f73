"""HTTP that ends in time, whatever a server does: headers, error texts and chunk sizes may drip like everything else.

The timeout of a socket starts anew with every byte that comes. Here each wait has only what is left of the whole.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from typing import Any, cast


class _Reading(io.RawIOBase):
    """A connection's bytes until a moment of time.monotonic; TimeoutError after it."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end
        self._bytes = cast("io.RawIOBase", connection.makefile("rb", buffering=0))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return cast("int | None", self._bytes.readinto(buffer))

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Source:
    """What an HTTPResponse takes for a socket: it asks for a file, and nothing else."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._connection, self._end))


class _Bounded(http.client.HTTPConnection):
    """A connection that is given up so many seconds after it was asked for."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        end = time.monotonic() + cast("float", self.timeout)

        def answer(connection: socket.socket, *more: Any, **named: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(cast("socket.socket", _Source(connection, end)), *more, **named)

        self.response_class = cast("type[http.client.HTTPResponse]", answer)


class _BoundedTls(_Bounded, http.client.HTTPSConnection):
    """The same with TLS."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, req)


class _Tls(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedTls, req)


def open_within(request: urllib.request.Request, seconds: float) -> Any:
    """Open an answer. All of it, from the connection to its last byte, takes so long at most; TimeoutError after it."""
    return urllib.request.build_opener(_Plain, _Tls).open(request, timeout=seconds)
