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

from halfbyte.errors import MachineError
from halfbyte.machine.interrupts import noted_ctrl_c
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ended, Ran, how_it_ended

_STEP_S = 0.02
_TO_START_S = 60.0  # for the sandbox itself, on a busy machine: the program's time has not begun
_AFTER_END_S = 2.0  # for the last bytes: whoever still holds the pipes then is not waited for
_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Start:
    """How to start it. Only `files` pass to it, of all that is open here; it says through `heard` that it stands."""

    name: str
    command: Sequence[str]
    heard: int
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
        clock = _Clock(start.heard)
        stopped = _follow(process, streams, limits, clock, check)
        out, err = (bytes(text).decode(errors="replace") for text in streams.texts.values())
        if not clock.runs():  # never the program's fault, so never its result
            why = (err.strip().splitlines() or [f"exit code {process.poll()}"])[-1]
            fix = "see `halfbyte doctor` for what this machine has"
            raise MachineError(f"the sandbox does not start: {why}", where=start.name, fix=fix)
        if stopped is not None:
            return Ran(stopped, None, out, err, clock.seconds)
        return Ran(how_it_ended(process.returncode, err), process.returncode, out, err, clock.seconds)


class _Clock:
    """Runs from the moment at which the program is about to begin."""

    def __init__(self, heard: int) -> None:
        self.made, self.began, self.heard = time.monotonic(), 0.0, heard
        os.set_blocking(heard, False)

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - (self.began or self.made)

    def runs(self) -> bool:
        """Say whether the program has begun, as far as was heard."""
        if not self.began:
            with contextlib.suppress(BlockingIOError):
                if os.read(self.heard, 1):
                    self.began = time.monotonic()
        return bool(self.began)


def _follow(
    process: subprocess.Popen[bytes], streams: _Streams, limits: Limits, clock: _Clock, check: Callable[[], None]
) -> Ended | None:
    """Return why it must be ended, or None when it ended by itself."""
    ended_at: float | None = None
    while True:
        check()
        if not streams.read(_STEP_S):
            return "output"
        if process.poll() is not None:
            ended_at = ended_at or time.monotonic()
            if not streams.open.get_map() or time.monotonic() > ended_at + _AFTER_END_S:
                return None
        elif clock.seconds > (limits.seconds if clock.runs() else _TO_START_S):
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
        with contextlib.suppress(OSError):  # it ends while we look
            for thread in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 - every 20 ms
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text()
                waiting += [int(child) for child in children.split()]
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
