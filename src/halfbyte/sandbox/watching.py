"""A process and everything it starts, followed from outside: wall clock, memory and output, and then its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from halfbyte.interrupts import noted_ctrl_c
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ended, Ran, how_it_ended

_STEP_S = 0.02
_AFTER_END_S = 2.0  # for the last bytes: whoever still holds the pipes then is not waited for
_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Start:
    """How to start it. Only `files` pass to it, of all that is open here."""

    command: Sequence[str]
    environment: dict[str, str]
    folder: str = "/"
    files: Sequence[int] = ()
    user: int | None = None  # to become before anything else


@dataclass(slots=True)
class _Streams:
    limit: int
    texts: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    open: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def add(self, descriptor: int) -> None:
        self.texts[descriptor] = bytearray()
        self.open.register(descriptor, selectors.EVENT_READ)

    def read(self, wait_s: float) -> bool:
        """Take what is there; say whether it is still within the limit."""
        if not self.open.get_map():
            time.sleep(wait_s)
            return True
        for key, _ in self.open.select(wait_s):
            block = os.read(key.fd, _BLOCK)
            if not block:
                self.open.unregister(key.fd)
            text = self.texts[key.fd]
            room = self.limit - len(text)
            text += block[:room]
            if len(block) > room:
                return False
        return True


def watch(start: Start, limits: Limits, stdin: str = "") -> Ran:
    """Run it until it ends or must be ended; everything that it started in its own namespace is gone then."""
    began = time.monotonic()
    with noted_ctrl_c() as check, contextlib.ExitStack() as cleanup:
        source = sealed(stdin.encode()) if stdin else os.open(os.devnull, os.O_RDONLY)
        cleanup.callback(os.close, source)
        process = subprocess.Popen(
            start.command,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=start.environment,
            cwd=start.folder,
            pass_fds=start.files,
            start_new_session=True,
            user=start.user,
            group=start.user,
            extra_groups=None if start.user is None else [],
        )
        cleanup.callback(_end, process)
        streams = _Streams(limits.output_nbytes)
        cleanup.callback(streams.open.close)
        assert process.stdout is not None and process.stderr is not None
        for pipe in (process.stdout, process.stderr):
            streams.add(pipe.fileno())
        stopped = _follow(process, streams, limits, began + limits.seconds, check)
        out, err = (bytes(text).decode(errors="replace") for text in streams.texts.values())
        seconds = time.monotonic() - began
        if stopped is not None:
            return Ran(stopped, None, out, err, seconds)
        return Ran(how_it_ended(process.returncode, err), process.returncode, out, err, seconds)


def _follow(
    process: subprocess.Popen[bytes], streams: _Streams, limits: Limits, deadline: float, check: Callable[[], None]
) -> Ended | None:
    """Return why it must be ended, or None when it ended by itself."""
    ended_at: float | None = None
    while True:
        check()
        if not streams.read(_STEP_S):
            return "output"
        now = time.monotonic()
        if process.poll() is not None:
            ended_at = ended_at or now
            if not streams.open.get_map() or now > ended_at + _AFTER_END_S:
                return None
        elif now > deadline:
            return "time"
        elif held_nbytes(descendants(process.pid)) > limits.memory_nbytes:
            return "memory"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started, youngest last: the first below a sandbox takes the whole of it along."""
    if process.poll() is None:
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # its session, where nothing isolates it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and theirs; parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop(0)
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                waiting += [int(child) for child in file.read_text().split()]
        found.append(parent)
    return found[1:]


def held_nbytes(pids: Sequence[int]) -> int:
    """Return the memory that processes hold for themselves; pages that a fork still shares count for each."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def sealed(data: bytes) -> int:
    """Return a file in memory that nobody can change, ready to be read: nothing of it ever lies on a disk."""
    import fcntl  # noqa: PLC0415 - Linux only, as all of this is

    descriptor = os.memfd_create("halfbyte", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    every = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, every)
    return descriptor
