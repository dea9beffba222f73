"""HTTP requests with a deadline for the whole exchange, including headers, error bodies and chunk sizes.

A socket timeout restarts with every byte received. Here each read waits only for the time left until the deadline.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from typing import Any, cast


class _Reading(io.RawIOBase):
    """Raw reader of a connection that raises TimeoutError after a deadline in time.monotonic seconds."""

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
    """Socket stand-in for HTTPResponse, which only calls `makefile`."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Reading(self._connection, self._end))


class _Bounded(http.client.HTTPConnection):
    """A connection whose timeout is a deadline for the whole exchange."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        end = time.monotonic() + cast("float", self.timeout)

        def response(connection: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(cast("socket.socket", _Source(connection, end)), *args, **options)

        self.response_class = cast("type[http.client.HTTPResponse]", response)


class _BoundedTls(_Bounded, http.client.HTTPSConnection):
    """A bounded connection with TLS."""


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Bounded, req)


class _Tls(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_BoundedTls, req)


def open_within(request: urllib.request.Request, seconds: float) -> Any:
    """Send a request; raise TimeoutError if connecting and reading the whole response take longer than `seconds`."""
    return urllib.request.build_opener(_Plain, _Tls).open(request, timeout=seconds)
