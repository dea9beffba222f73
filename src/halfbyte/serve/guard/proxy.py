"""The proxy: every request goes to the server behind it, and every answer comes back as it is but for loops.

Only streamed chat and completions are watched. An answer that is not streamed is passed on as it came: who asks so gets
it when the server is through, and taking it apart and together again would not give the same bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from halfbyte.serve.guard.answers import StreamedAnswer
from halfbyte.serve.guard.events import EventReader
from halfbyte.validate.endpoint import PATHS
from halfbyte.validate.probe.degeneracy.watch import Loop

# They belong to one connection, and the proxy has two (RFC 9110, 7.6.1).
_OF_A_CONNECTION = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
                    "trailer", "transfer-encoding", "upgrade"}  # fmt: skip
_UNPACKED = {"gzip", "deflate", "br", "zstd"}  # bodies that arrive here packed so are read as what they were before
_LARGEST_REQUEST = 1 << 28
_CONNECT_S = 30.0
_BAD_GATEWAY = 502


class Guard:
    """The proxy before one server; `noticed` is told of each loop that it ended."""

    def __init__(self, url: str, noticed: Callable[[Loop], None] = lambda loop: None) -> None:
        self._url = url.rstrip("/")
        self._noticed = noticed
        self._session: ClientSession | None = None

    def runner(self) -> web.AppRunner:
        """Return it ready for a port; a client that hangs up ends its request, and so the one behind."""
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.cleanup_ctx.append(self._with_session)
        return web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    async def _with_session(self, _: web.Application) -> AsyncGenerator[None]:
        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S)  # how long a model thinks is not ours to say
        async with ClientSession(
            connector=TCPConnector(limit=0), timeout=timeout, cookie_jar=DummyCookieJar(), auto_decompress=False
        ) as self._session:
            yield

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = _streamed_request(request, body)
        unpacked = request.headers.get("Content-Encoding", "").strip().lower() in _UNPACKED
        without = ("host", "content-length", *(("content-encoding",) if unpacked else ()))
        headers = _for_next_hop(request.headers, without)
        if asked is not None:
            headers["Accept-Encoding"] = "identity"  # what is packed cannot be watched
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
            return await self._pass_on(request, upstream, asked)
        finally:
            upstream.close()  # an engine whose client has gone stops; one that is through does not mind

    async def _pass_on(
        self, request: web.Request, upstream: ClientResponse, asked: dict[str, Any] | None
    ) -> web.StreamResponse:
        packed = upstream.headers.get("Content-Encoding", "identity").strip().lower() != "identity"  # against our wish
        watched = asked is not None and upstream.content_type == "text/event-stream" and not packed
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason)
        without = ("content-length",) if watched else ()
        for name, value in _for_next_hop(upstream.headers, without).items():
            response.headers.add(name, value)
        try:
            await response.prepare(request)
            if watched and asked is not None:
                await _watch(upstream, response, StreamedAnswer(asked, self._noticed))
            else:
                async for piece in upstream.content.iter_any():
                    await response.write(piece)
            await response.write_eof()
        except ClientError:
            # The answer broke off. An orderly end would tell the client that it is whole.
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
                upstream.close()  # now: the engine need not wait until the client has read
                await response.write(b"".join(ready))
                return
        if any(ready):
            await response.write(b"".join(ready))
    rest = events.rest()
    if rest:
        await response.write(rest)


def _streamed_request(request: web.Request, body: bytes) -> dict[str, Any] | None:
    """Return what was asked, where an answer will come that can be watched."""
    if request.method != "POST" or not request.path.endswith(tuple(PATHS.values())):
        return None
    try:
        asked: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None  # the server says what is wrong with it
    return cast("dict[str, Any]", asked) if isinstance(asked, dict) and asked.get("stream") is True else None


def _for_next_hop(headers: Any, without: tuple[str, ...]) -> CIMultiDict[str]:
    named = {name.strip().lower() for line in headers.getall("Connection", ()) for name in line.split(",")}
    left_out = _OF_A_CONNECTION | named | set(without)
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)


def _unreachable(url: str, error: BaseException) -> web.Response:
    said = {"message": f"no answer from {url}: {error or type(error).__name__}", "type": "upstream_error", "code": 502}
    return web.json_response({"error": said}, status=_BAD_GATEWAY)
