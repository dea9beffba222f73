"""The guard before an engine that `--run` starts: a process of its own, which ends with us.

It listens before the engine is started, so that a port that cannot be used is said at once; until the engine answers,
the guard says that it does not. Its own process, because what it computes for many streams must not wait for ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Generator

from halfbyte.errors import MachineError
from halfbyte.machine.own_python import OWN_PYTHON
from halfbyte.serve.front import Front
from halfbyte.serve.guard.command import needs_aiohttp, serve_until_stopped
from halfbyte.serve.keeper import end_with_parent
from halfbyte.serve.ports import HOST
from halfbyte.terminal.console import Output

_ENDS_S = 5.0
_READY = b"ready\n"


@contextlib.contextmanager
def guard_before(engine_url: str, port: int) -> Generator[Front]:
    """Hold a guard on a port before an engine that need not answer yet."""
    needs_aiohttp()
    command = [*OWN_PYTHON, "-m", "halfbyte.serve.guard.beside", engine_url, str(port)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is for us: the guard ends after the engine
        preexec_fn=end_with_parent,  # noqa: PLW1509 - no thread of ours holds a lock that one system call could want
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if said != _READY:
                what = f"the guard did not start: {said.decode(errors='replace').strip() or 'it said nothing'}"
                raise MachineError(what, where=f"--port {port}", fix="name another --port, or leave out --guard")
            yield Front(f"http://{HOST}:{port}", lambda: process.poll() is not None)
        finally:
            process.terminate()
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()


def main(url: str, port: int) -> None:
    """Serve until SIGTERM; the parent reads one line: that the port is ours, or why it is not."""

    def say(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    try:
        asyncio.run(serve_until_stopped(Output(), url, port, lambda: say(_READY)))
    except MachineError as error:
        say(f"{error.what}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
