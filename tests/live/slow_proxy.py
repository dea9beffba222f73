"""A real proxy that slows a server by a factor: data sent t seconds after a request arrives after factor * t.

It forwards bytes unchanged. Run it as a script: python slow_proxy.py PORT SERVER_PORT FACTOR
"""

import asyncio
import contextlib
import sys

CHUNK = 1 << 16


async def handle(reader, writer, server_port: int, factor: float) -> None:
    """Connect a client and the server until one of them disconnects."""
    loop = asyncio.get_running_loop()
    upstream, to_server = await asyncio.open_connection("127.0.0.1", server_port)
    asked = {"at": loop.time()}
    held: asyncio.Queue = asyncio.Queue()  # reading continues while bytes wait, otherwise delays would add up

    async def forward() -> None:
        while data := await reader.read(CHUNK):
            asked["at"] = loop.time()
            to_server.write(data)
            await to_server.drain()
        to_server.close()

    async def hold() -> None:
        while data := await upstream.read(CHUNK):
            await held.put((asked["at"] + factor * (loop.time() - asked["at"]), data))
        await held.put((loop.time(), b""))

    async def release() -> None:
        while True:
            at, data = await held.get()
            if not data:
                break
            await asyncio.sleep(max(0.0, at - loop.time()))
            writer.write(data)
            await writer.drain()
        writer.close()

    with contextlib.suppress(OSError):
        await asyncio.gather(forward(), hold(), release())


async def main(port: int, server_port: int, factor: float) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(lambda r, w: handle(r, w, server_port, factor), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
