"""Reserve the port of an engine, and check that the engine itself listens on it.

An engine binds its port long after it was chosen, and vLLM sets SO_REUSEPORT, so a second server can bind the same port
unnoticed. So other runs of `halfbyte` see a reserved port at once, and before an engine counts as ready, the listening
process is identified.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from pathlib import Path

from halfbyte.errors import MachineError, UsageError
from halfbyte.serve.engine_log import clean

HOST = "127.0.0.1"
FIRST_PORT, TRIED_PORTS = 8000, 100
STAYS_S = 0.2
_LISTENING = "0A"  # linux/net/tcp_states.h
# Listening addresses that a client of 127.0.0.1 reaches: loopback and "any", in IPv4 and IPv6.
_REACHED = ("0100007F", "00000000", "0000000000000000FFFF00000100007F", "0" * 32)


@dataclass(frozen=True, slots=True)
class ProxyAddress:
    """The URL that clients use instead of the engine's own, and whether the proxy has exited."""

    url: str
    ended: Callable[[], bool] = lambda: False


@contextlib.contextmanager
def held_port(requested: int | None, host: str = HOST) -> Generator[int]:
    """Reserve the requested port, or the first free one from 8000 on; raise MachineError if it is taken.

    Nothing listens on it yet, but other runs of `halfbyte` skip it.
    """
    problem: str | None = None
    for port in range(FIRST_PORT, FIRST_PORT + TRIED_PORTS) if requested is None else (requested,):
        with _claim(port) as claimed:
            problem = _problem(host, port) if claimed else f"port {port} is reserved by another `halfbyte serve --run`"
            if problem is None:
                yield port
                return
    if requested is not None and problem is not None:
        raise MachineError(problem, where=f"--port {requested}", fix=_fix(host))
    what = f"no port from {FIRST_PORT} to {FIRST_PORT + TRIED_PORTS - 1} is free"
    raise MachineError(what, where=host, fix="choose one with --port")


def next_free_port(host: str = HOST) -> int | None:
    """Return the first free port from 8000 on."""
    try:
        with held_port(None, host) as port:
            return port
    except MachineError:
        return None


@contextlib.contextmanager
def _claim(port: int) -> Generator[bool]:
    """Reserve a port among runs of halfbyte; yield whether it succeeded. It ends with this process at the latest.

    It binds an abstract Unix socket, which Linux scopes by network namespace like the port itself.
    """
    if sys.platform != "linux":
        yield True
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
        try:
            claim.bind(f"\0halfbyte-serve-port-{port}")
            free = True
        except OSError as error:
            free = error.errno != errno.EADDRINUSE  # where abstract sockets are forbidden, do without
        yield free


def _fix(host: str) -> str:
    free = next_free_port(host)
    return f"--port {free} is free" if free else "choose another one with --port"


def _problem(host: str, port: int) -> str | None:
    """Return why the port cannot be used, or None if it is free."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageError(f"no such address on this machine: {error.strerror}", where=f"--host {host}") from None
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, to ignore TIME_WAIT
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
    """Return the name and id of the process that listens on a port, if /proc shows it."""
    return _named(listening_process(port))


def listening_process(port: int) -> Path | None:
    """Return the /proc folder of the process that listens on a port, if /proc shows it."""
    return _process_with(_listening_sockets(port) or set())


def own_listener(port: int, own: Callable[[], Collection[int]]) -> bool | None:
    """Return whether one of the processes in `own()` listens on a port; None without /proc.

    Raise MachineError if another process listens there.
    """
    sockets = _listening_sockets(port)
    if not sockets:
        return None if sockets is None else False
    held = _sockets_of(own())
    other = sockets - held
    if other:  # it may be a short check whether the port is free, or a process of ours that has just started
        time.sleep(STAYS_S)
        held |= _sockets_of(own())
        other = (other & (_listening_sockets(port) or set())) - held
    if other:
        raise port_taken(port, _named(_process_with(other)))
    return bool(sockets & held)


def _sockets_of(processes: Collection[int]) -> set[str]:
    return {name for process in processes for name in _files(Path(f"/proc/{process}"))}


def port_taken(port: int, who: str | None = None) -> MachineError:
    """Return the error for a port on which another server listens."""
    what = f"another server listens on the engine's port {port}: {who or 'an unknown process'}"
    return MachineError(what, where=f"http://{HOST}:{port}", fix=f"stop it, or choose another port: {_fix(HOST)}")


def _process_with(sockets: set[str]) -> Path | None:
    """Return the first process that has one of these sockets."""
    for process in Path("/proc").iterdir() if sockets else ():
        if process.name.isdigit() and not sockets.isdisjoint(_files(process)):
            return process
    return None


def _named(process: Path | None) -> str | None:
    """Return the name and id of a process."""
    with contextlib.suppress(OSError):  # it has just exited
        if process is not None:
            return f"{clean((process / 'comm').read_text(errors='replace'))} (process {process.name})"
    return None


def _files(process: Path) -> set[str]:
    """Return the open files of a process; empty if it belongs to another user or has exited."""
    files: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                files.add(str(descriptor.readlink()))
    return files


def _listening_sockets(port: int) -> set[str] | None:
    """Return the sockets that listen on a port, as named among a process's open files; None without /proc/net."""
    sockets: set[str] | None = None
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = Path(table).read_text(encoding="utf-8").splitlines()[1:]
            sockets = set() if sockets is None else sockets
            for row in rows:
                fields = row.split()
                address, _, number = fields[1].rpartition(":")
                if fields[3] == _LISTENING and int(number, 16) == port and address in _REACHED:
                    sockets.add(f"socket:[{fields[9]}]")
    return sockets
