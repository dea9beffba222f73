"""`halfbyte serve --guard URL`: the proxy on a port, until Ctrl-C. Before an engine of our own: beside.py."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
from collections.abc import Callable, Mapping
from typing import Any

from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.extras import install_extra
from halfbyte.serve.ports import HOST, held_port
from halfbyte.terminal.console import Output
from halfbyte.validate.endpoint import parse_url

PORT = 8100
_BESIDE = ("guard", "port")
_OPTIONS = {"runs": "--run", "then_names": "--then", "shell": "--exec", "write_to": "--write", "given": "--set"}


def guard(out: Output, url: str, out_folder: Any, choice: Mapping[str, Any]) -> None:
    """Check what was asked, and serve."""
    _refuse_others(out_folder, choice, url)
    needs_aiohttp()
    server = parse_url(url, timeout_s=10.0).url
    with held_port(choice["port"] or PORT) as port:
        if server in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
            what = "the guard cannot listen where its server does"
            raise UsageError(what, where=f"--port {port}", fix="choose another --port")

        def ready() -> None:
            out.note(f"http://{HOST}:{port} passes everything on to {server} and ends loops; Ctrl-C ends it")

        asyncio.run(serve_until_stopped(out, server, port, ready))


def needs_aiohttp() -> None:
    """Say at once that an extra is missing."""
    if importlib.util.find_spec("aiohttp") is None:
        raise MachineError("the guard needs aiohttp", where="--guard", fix=install_extra("guard"))


def _refuse_others(out_folder: Any, choice: Mapping[str, Any], url: str) -> None:
    if not url:
        what = "--guard stands before a server: one that runs, or the one that --run starts"
        raise UsageError(what, where="--guard", fix="give its URL, or write serve OUT --run --guard")
    if out_folder is not None:
        fix = f"for both write halfbyte serve {out_folder} --run --guard, without the URL"
        raise UsageError("--guard stands before a server that runs, and serves no checkpoint", where="OUT", fix=fix)
    for name, value in choice.items():
        if value and name not in _BESIDE:
            option = _OPTIONS.get(name, "--" + name.replace("_", "-"))
            raise UsageError(f"{option} does nothing beside --guard", where=option, fix=f"leave out {option}")


async def serve_until_stopped(out: Output, url: str, port: int, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called when the port is ours."""
    from aiohttp import web  # noqa: PLC0415 - an extra

    from halfbyte.serve.guard.proxy import Guard  # noqa: PLC0415 - which needs it

    proxy = Guard(url, noticed=lambda loop: out.note(f"ended a loop at character {loop.end}: {loop.sentence}"))
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
            raise MachineError(what, where=f"--port {port}", fix="name another one with --port") from None
        ready()
        await stop.wait()
    finally:
        await runner.cleanup()
