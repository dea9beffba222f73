"""Run the loop-stopping proxy on a port, or in its own process in front of an engine that `--run` starts.

The process listens before the engine starts, so an unusable port fails at once. Until the engine is up it returns HTTP
502. A separate process keeps loop detection for many streams independent of the launcher, and exits with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Callable, Generator

from halfbyte.errors import MachineError
from halfbyte.machine.extras import install_extra
from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.serve.ports import HOST, ProxyAddress
from halfbyte.serve.supervisor import end_with_parent
from halfbyte.ui.console import Output

_ENDS_S = 5.0
_READY = b"ready\n"


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


@contextlib.contextmanager
def running_proxy(engine_url: str, port: int) -> Generator[ProxyAddress]:
    """Run a proxy on a port in front of an engine that may not have started yet."""
    needs_aiohttp()
    command = [*OWN_PYTHON, "-m", "halfbyte.serve.loop_proxy.server", engine_url, str(port)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C must not reach it: the proxy stops after the engine
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it only makes a system call and needs no lock
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line != _READY:
                reason = line.decode(errors="replace").strip() or "it printed nothing"
                what = f"the loop-stopping proxy did not start: {reason}"
                raise MachineError(what, where=f"--port {port}", fix="choose another --port, or leave out --guard")
            yield ProxyAddress(f"http://{HOST}:{port}", lambda: process.poll() is not None)
        finally:
            process.terminate()
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()


def main(url: str, port: int) -> None:
    """Serve until SIGTERM; print one line for the parent: ready, or why the port cannot be used."""

    def report(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    try:
        asyncio.run(serve_until_stopped(Output(), url, port, lambda: report(_READY)))
    except MachineError as error:
        report(f"{error.what}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
