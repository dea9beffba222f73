"""The port that an engine shall listen on: the one asked for if it is free, else a sentence with who has it."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path

from halfbyte.errors import MachineError, UsageError
from halfbyte.serve.engine_log import clean

HOST = "127.0.0.1"
FIRST_PORT, TRIED_PORTS = 8000, 100
_LISTENING = "0A"  # linux/net/tcp_states.h


def chosen_port(asked: int | None, host: str = HOST) -> int:
    """Return the port asked for, or 8000 or the next free one; a port that is taken is an error before any work."""
    if asked is not None:
        problem = _problem(host, asked)
        if problem is not None:
            raise MachineError(problem, where=f"--port {asked}", fix=_fix(host))
        return asked
    free = next_free_port(host)
    if free is None:
        last = FIRST_PORT + TRIED_PORTS - 1
        raise MachineError(f"no port from {FIRST_PORT} to {last} is free", where=host, fix="name one with --port")
    return free


def next_free_port(host: str = HOST) -> int | None:
    """Return 8000 or the next port on which nobody listens."""
    ports = range(FIRST_PORT, FIRST_PORT + TRIED_PORTS)
    return next((port for port in ports if _problem(host, port) is None), None)


def _fix(host: str) -> str:
    free = next_free_port(host)
    return f"--port {free} is free" if free else "name another one with --port"


def _problem(host: str, port: int) -> str | None:
    """Return why nobody can listen there; None where it is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"no such address on this machine: {error.strerror}", where=f"--host {host}") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed one does not block
        try:
            listener.bind(address)
            listener.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return f"port {port} cannot be used: {error.strerror}"
            who = listener_on(port)
            return f"port {port} is in use" + (f" by {who}" if who else "")
    return None


def listener_on(port: int) -> str | None:
    """Return the name and id of the process that listens on a port, as far as /proc tells us."""
    process = listening_process(port)
    with contextlib.suppress(OSError):  # just gone
        if process is not None:
            return f"{clean((process / 'comm').read_text(errors='replace'))} (process {process.name})"
    return None


def listening_process(port: int) -> Path | None:
    """Return the folder under /proc of the process that listens on a port, as far as /proc tells us."""
    sockets = _listening_sockets(port)
    if not sockets:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's, or just gone
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in sockets:
                        return process
    return None


def _listening_sockets(port: int) -> set[str]:
    """Return the names under which the sockets that listen on a port appear among a process's files."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text(encoding="utf-8").splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found
