"""The port that an engine shall listen on: held from the choice to the engine's end, and whose server is on it.

An engine binds its port long after it was chosen, and vLLM sets SO_REUSEPORT, so that a second server may listen beside
it unnoticed. Hence a claim that other halfbytes see at once, and a look at who really listens before anyone is told
that the engine is ready.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import time
from collections.abc import Callable, Collection, Generator
from pathlib import Path

from halfbyte.errors import MachineError, UsageError
from halfbyte.serve.engine_log import clean

HOST = "127.0.0.1"
FIRST_PORT, TRIED_PORTS = 8000, 100
STAYS_S = 0.2
_LISTENING = "0A"  # linux/net/tcp_states.h
# The addresses that a client of 127.0.0.1 reaches: itself and "any", in IPv4 and in IPv6.
_REACHED = ("0100007F", "00000000", "0000000000000000FFFF00000100007F", "0" * 32)


@contextlib.contextmanager
def held_port(asked: int | None, host: str = HOST) -> Generator[int]:
    """Hold the port asked for, or 8000 or the next free one; a port that is taken is an error before any work.

    Nobody listens on it yet, but no other halfbyte takes it meanwhile.
    """
    problem: str | None = None
    for port in range(FIRST_PORT, FIRST_PORT + TRIED_PORTS) if asked is None else (asked,):
        with _claim(port) as claimed:
            problem = _problem(host, port) if claimed else f"port {port} is held by another `halfbyte serve --run`"
            if problem is None:
                yield port
                return
    if asked is not None and problem is not None:
        raise MachineError(problem, where=f"--port {asked}", fix=_fix(host))
    what = f"no port from {FIRST_PORT} to {FIRST_PORT + TRIED_PORTS - 1} is free"
    raise MachineError(what, where=host, fix="name one with --port")


def next_free_port(host: str = HOST) -> int | None:
    """Return 8000 or the next port that nobody holds."""
    try:
        with held_port(None, host) as port:
            return port
    except MachineError:
        return None


@contextlib.contextmanager
def _claim(port: int) -> Generator[bool]:
    """Claim a port among halfbytes; yield whether nobody else has. The claim ends with this process at the latest.

    It is a name that only Linux has: seen as far as the port itself is, by containers too, and not a file.
    """
    if sys.platform != "linux":
        yield True
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0halfbyte-serve-port-{port}")
            free = True
        except OSError as error:
            free = error.errno != errno.EADDRINUSE  # where such names are forbidden, one goes without
        yield free


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
    return _named(listening_process(port))


def listening_process(port: int) -> Path | None:
    """Return the folder under /proc of the process that listens on a port, as far as /proc tells us."""
    return _process_with(_listening_sockets(port) or set())


def own_listener(port: int, own: Callable[[], Collection[int]]) -> bool | None:
    """Return whether one of the processes that `own` finds listens on a port; None where /proc cannot tell.

    A process that is none of them and listens there is a MachineError.
    """
    sockets = _listening_sockets(port)
    if not sockets:
        return None if sockets is None else False
    held = _sockets_of(own())
    strange = sockets - held
    if strange:  # one that only looks whether the port is free is gone at once, and our own may have only just begun
        time.sleep(STAYS_S)
        held |= _sockets_of(own())
        strange = (strange & (_listening_sockets(port) or set())) - held
    if strange:
        raise taken(port, _named(_process_with(strange)))
    return bool(sockets & held)


def _sockets_of(processes: Collection[int]) -> set[str]:
    return {name for process in processes for name in _files(Path(f"/proc/{process}"))}


def taken(port: int, who: str | None = None) -> MachineError:
    """Return the error for a port on which another server answers."""
    what = f"another server listens on port {port}, which the engine was to have: {who or 'not a process of ours'}"
    return MachineError(what, where=f"http://{HOST}:{port}", fix=f"end it, or choose another port: {_fix(HOST)}")


def _process_with(sockets: set[str]) -> Path | None:
    """Return the first process that has one of these sockets."""
    for process in Path("/proc").iterdir() if sockets else ():
        if process.name.isdigit() and not sockets.isdisjoint(_files(process)):
            return process
    return None


def _named(process: Path | None) -> str | None:
    """Return the name and id of a process."""
    with contextlib.suppress(OSError):  # just gone
        if process is not None:
            return f"{clean((process / 'comm').read_text(errors='replace'))} (process {process.name})"
    return None


def _files(process: Path) -> set[str]:
    """Return what a process has open; nothing where it is another user's, or just gone."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(descriptor.readlink()))
    return found


def _listening_sockets(port: int) -> set[str] | None:
    """Return the names under which the sockets that listen on a port appear among a process's files.

    None where there are no such tables.
    """
    found: set[str] | None = None
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = Path(table).read_text(encoding="utf-8").splitlines()[1:]
            found = set() if found is None else found
            for row in rows:
                fields = row.split()
                address, _, number = fields[1].rpartition(":")
                if fields[3] == _LISTENING and int(number, 16) == port and address in _REACHED:
                    found.add(f"socket:[{fields[9]}]")
    return found
