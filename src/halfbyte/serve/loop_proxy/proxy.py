"""HTTP proxy that forwards every request and stops looping responses.

Only streamed chat and text completions are checked. Other responses are passed on byte for byte: a response that is
not streamed arrives when the server has finished it, and parsing it would change its bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from halfbyte.degeneracy.watch import Loop
from halfbyte.endpoint.client import PATHS
from halfbyte.serve.loop_proxy.answers import EventReader, StreamedAnswer

# Hop-by-hop headers (RFC 9110, 7.6.1).
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
               "trailer", "transfer-encoding", "upgrade"}  # fmt: skip
_UNPACKED = {"gzip", "deflate", "br", "zstd"}  # request bodies that aiohttp decompresses
_LARGEST_REQUEST = 1 << 28
_CONNECT_S = 30.0
_BAD_GATEWAY = 502


class Guard:
    """The proxy in front of one server; it calls `noticed` for each loop that it stops."""

    def __init__(self, url: str, noticed: Callable[[Loop], None] = lambda loop: None) -> None:
        self._url = url.rstrip("/")
        self._noticed = noticed
        self._session: ClientSession | None = None

    def runner(self) -> web.AppRunner:
        """Return the application's runner; a client that disconnects cancels the request to the server too."""
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.cleanup_ctx.append(self._with_session)
        return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def _with_session(self, _: web.Application) -> AsyncGenerator[None]:
        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S)  # generation may take any time
        async with ClientSession(
            connector=TCPConnector(limit=0), timeout=timeout, cookie_jar=DummyCookieJar(), auto_decompress=False
        ) as self._session:
            yield

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        streamed = _streamed_request(request, body)
        unpacked = request.headers.get("Content-Encoding", "").strip().lower() in _UNPACKED
        dropped = ("host", "content-length", *(("content-encoding",) if unpacked else ()))
        headers = _for_next_hop(request.headers, dropped)
        if streamed is not None:
            headers["Accept-Encoding"] = "identity"  # compressed responses cannot be checked
        elif "Accept-Encoding" not in headers:
            headers["Accept-Encoding"] = "identity"
        address = URL(self._url + request.raw_path, encoded=True)
        assert self._session is not None
        try:
            upstream = await self._session.request(
                request.method, address, headers=headers, data=body or None, allow_redirects=False,
                skip_auto_headers=("User-Agent", "Content-Type", "Accept"),
            )  # fmt: skip
        except (ClientError, OSError, asyncio.TimeoutError) as error:
            return _unreachable(self._url, error)
        try:
            return await self._pass_on(request, upstream, streamed)
        finally:
            upstream.close()  # the engine stops generating for a disconnected client

    async def _pass_on(
        self, request: web.Request, upstream: ClientResponse, streamed: dict[str, Any] | None
    ) -> web.StreamResponse:
        packed = upstream.headers.get("Content-Encoding", "identity").strip().lower() != "identity"
        watched = streamed is not None and upstream.content_type == "text/event-stream" and not packed
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
        dropped = ("content-length",) if watched else ()
        for name, value in _for_next_hop(upstream.headers, dropped).items():
            response.headers.add(name, value)
        try:
            await response.prepare(request)
            if watched and streamed is not None:
                await _watch(upstream, response, StreamedAnswer(streamed, self._noticed))
            else:
                async for piece in upstream.content.iter_any():
                    await response.write(piece)
            await response.write_eof()
        except ClientError:
            # The response is incomplete: a regular end of the stream would hide that from the client.
            if request.transport is not None:
                request.transport.abort()
        return response


async def _watch(upstream: ClientResponse, response: web.StreamResponse, answer: StreamedAnswer) -> None:
    events = EventReader()
    async for piece in upstream.content.iter_any():
        ready: list[bytes] = []
        for event in events.feed(piece):
            ready.append(answer.pass_on(event))
            if answer.over:
                upstream.close()  # before the write, so that the engine does not wait for a slow client
                await response.write(b"".join(ready))
                return
        if any(ready):
            await response.write(b"".join(ready))
    rest = events.rest()
    if rest:
        await response.write(rest)


def _streamed_request(request: web.Request, body: bytes) -> dict[str, Any] | None:
    """Return the body of a request for streamed completions, else None."""
    if request.method != "POST" or not request.path.endswith(tuple(PATHS.values())):
        return None
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the server reports the error
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) and fields.get("stream") is True else None


def _for_next_hop(headers: Any, dropped: tuple[str, ...]) -> CIMultiDict[str]:
    named = {name.strip().lower() for line in headers.getall("Connection", ()) for name in line.split(",")}
    excluded = _HOP_BY_HOP | named | set(dropped)
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in excluded)


def _unreachable(url: str, error: BaseException) -> web.Response:
    message = f"no response from {url}: {error or type(error).__name__}"
    return web.json_response(
        {"error": {"message": message, "type": "upstream_error", "code": 502}}, status=_BAD_GATEWAY
    )
