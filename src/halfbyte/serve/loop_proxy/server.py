"""Run the loop-stopping proxy on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
from collections.abc import Callable

from halfbyte.errors import MachineError
from halfbyte.machine.extras import install_extra
from halfbyte.serve.ports import HOST
from halfbyte.ui.console import Output


def needs_aiohttp() -> None:
    """Raise if aiohttp is not installed."""
    if importlib.util.find_spec("aiohttp") is None:
        raise MachineError("--guard requires aiohttp", where="--guard", fix=install_extra("guard"))


async def serve_until_stopped(out: Output, url: str, port: int, ready: Callable[[], None]) -> None:
    """Run the proxy until SIGINT or SIGTERM. `ready` is called once it listens."""
    from aiohttp import web  # noqa: PLC0415 - an extra

    from halfbyte.serve.loop_proxy.proxy import Guard  # noqa: PLC0415 - imports aiohttp

    proxy = Guard(url, noticed=lambda loop: out.note(f"stopped a loop at character {loop.end}: {loop.sentence}"))
    runner = proxy.runner()
    await runner.setup()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            what = f"port {port} cannot be used: {error.strerror}"
            raise MachineError(what, where=f"--port {port}", fix="choose another --port") from None
        ready()
        await stop.wait()
    finally:
        await runner.cleanup()
