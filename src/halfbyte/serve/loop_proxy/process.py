"""Run the loop-stopping proxy in its own process in front of an engine that `--run` starts.

It listens before the engine starts, so an unusable port fails at once. Until the engine is up it returns HTTP 502. The
separate process keeps loop detection for many streams independent of the launcher, and exits with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Generator

from halfbyte.errors import MachineError
from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.serve.loop_proxy.server import needs_aiohttp, serve_until_stopped
from halfbyte.serve.ports import HOST
from halfbyte.serve.proxy_address import ProxyAddress
from halfbyte.serve.supervisor import end_with_parent
from halfbyte.ui.console import Output

_ENDS_S = 5.0
_READY = b"ready\n"


@contextlib.contextmanager
def guard_before(engine_url: str, port: int) -> Generator[ProxyAddress]:
    """Run a proxy on a port in front of an engine that may not have started yet."""
    needs_aiohttp()
    command = [*OWN_PYTHON, "-m", "halfbyte.serve.loop_proxy.process", engine_url, str(port)]
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
