"""A real proxy that damages streams: it drops events, or bytes of multi-byte characters.

Run it as a script: python faulty_proxy.py PORT SERVER_PORT drop-chunks|cut-characters
"""

import contextlib
import sys

from aiohttp import ClientSession, ClientTimeout, web

EVERY = 7  # this event of a stream is lost, and each after as many more
HOP_BY_HOP = {"transfer-encoding", "content-length", "content-encoding", "connection", "host"}


def cut_characters(data: bytes) -> bytes:
    """Drop the last byte of each multi-byte character, which makes the text invalid UTF-8."""
    kept = bytearray()
    for at, byte in enumerate(data):
        follows = at + 1 < len(data) and data[at + 1] & 0xC0 == 0x80
        if byte & 0xC0 == 0x80 and not follows:
            continue
        kept.append(byte)
    return bytes(kept)


async def events(body, fault: str):
    """Yield the events of a stream, damaged."""
    held, count = b"", 0
    async for piece in body.iter_any():
        held += piece
        *whole, held = held.split(b"\n\n")
        for event in whole:
            count += 1
            if fault == "drop-chunks" and count % EVERY == 0 and b"[DONE]" not in event:
                continue
            yield (cut_characters(event) if fault == "cut-characters" else event) + b"\n\n"
    yield held


def application(server: str, fault: str) -> web.Application:
    """Return the proxy."""

    async def handle(request: web.Request) -> web.StreamResponse:
        async with ClientSession(timeout=ClientTimeout(total=600)) as session:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
            url = f"{server}{request.path_qs}"
            async with session.request(request.method, url, data=await request.read(), headers=headers) as answer:
                back = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
                response = web.StreamResponse(status=answer.status, headers=back)
                await response.prepare(request)
                with contextlib.suppress(
                    ConnectionResetError
                ):  # the client disconnected, as the cancellation probe does
                    if answer.content_type == "text/event-stream":
                        async for event in events(answer.content, fault):
                            await response.write(event)
                    else:
                        body = await answer.read()
                        await response.write(cut_characters(body) if fault == "cut-characters" else body)
                    await response.write_eof()
                return response

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handle)
    return app


if __name__ == "__main__":
    port, server_port, fault = sys.argv[1:]
    web.run_app(application(f"http://127.0.0.1:{server_port}", fault), host="127.0.0.1", port=int(port), print=None)
