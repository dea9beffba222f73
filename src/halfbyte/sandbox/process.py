"""A program in a process of its own: its resource limits, its outcome, and the watch that enforces the limits."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from halfbyte.errors import MachineError
from halfbyte.machine.interrupts import deferred_ctrl_c


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits. A program that reaches one is killed or gets an error."""

    seconds: float = 10.0  # wall clock
    memory_nbytes: int = 1_000_000_000  # address space of each process, and resident memory of all processes together
    processes: int = 32  # including the program itself; threads count
    file_nbytes: int = 10_000_000  # one file
    disk_nbytes: int = 50_000_000  # all files, which are in memory
    open_files: int = 64
    output_nbytes: int = 1_000_000  # each of stdout and stderr

    @property
    def cpu_seconds(self) -> int:
        """Return the CPU time of one process: slightly more than the wall clock, which must run out first."""
        return math.ceil(self.seconds) + 1

    def rlimits(self) -> dict[str, int]:
        """Return the kernel limits by their names in Python's `resource`."""
        return {
            "RLIMIT_AS": self.memory_nbytes,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_nbytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 65536,
            "RLIMIT_MSGQUEUE": 0,
        }


Ended = Literal["exit", "time", "memory", "output", "killed"]
_SIGNALLED = 128  # shells report signal n as exit code 128 + n
_LAST_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class Ran:
    """Outcome of one run: `exit` (ended on its own, with `code`), `killed` (by a signal) or the exceeded limit.

    `sys.exit(139)` looks like a crash, because namespaces report both the same way.
    """

    ended: Ended
    code: int | None  # None if the program was killed
    stdout: str
    stderr: str
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Return whether the program exited with code 0."""
        return self.ended == "exit" and self.code == 0


def classify_exit(code: int, stderr: str) -> Ended:
    """Classify the exit code of a program that ended before any limit."""
    number = -code if code < 0 else code - _SIGNALLED
    if number == signal.SIGXCPU:
        return "time"
    if 0 < number <= _LAST_SIGNAL:
        return "killed"
    last = stderr.rstrip().rpartition("\n")[2]
    return "memory" if code != 0 and last.startswith("MemoryError") else "exit"


_STEP_S = 0.02
_TO_START_S = 60.0  # for the sandbox to start on a busy machine, before the time of the program starts
_AFTER_END_S = 2.0  # for the last output; processes that still hold the pipes then are ignored
_BLOCK = 65536


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a process. It inherits only the descriptors `files` and writes to the pipe `ready` once it runs."""

    name: str
    command: Sequence[str]
    ready: int
    environment: dict[str, str]
    folder: str = "/"
    files: Sequence[int] = ()
    user: int | None = None  # to switch to first


@dataclass(slots=True)
class _Streams:
    limit: int
    texts: dict[int, bytearray] = field(default_factory=dict[int, bytearray])
    open: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def add(self, descriptor: int) -> None:
        self.texts[descriptor] = bytearray()
        self.open.register(descriptor, selectors.EVENT_READ)

    def read(self, wait_s: float) -> bool:
        """Read the available output; return whether it is within the limit."""
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
    """Run a process until it ends or exceeds a limit, then kill everything it started in its namespace."""
    with deferred_ctrl_c() as check, contextlib.ExitStack() as cleanup:
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
        cleanup.callback(_kill, process)
        streams = _Streams(limits.output_nbytes)
        cleanup.callback(streams.open.close)
        assert process.stdout is not None and process.stderr is not None
        for pipe in (process.stdout, process.stderr):
            streams.add(pipe.fileno())
        clock = _Clock(start.ready)
        stopped = _follow(process, streams, limits, clock, check)
        out, err = (bytes(text).decode(errors="replace") for text in streams.texts.values())
        if not clock.running():  # a fault of the sandbox, not of the program
            reason = (err.strip().splitlines() or [f"exit code {process.poll()}"])[-1]
            fix = "see `halfbyte doctor` for what this machine supports"
            raise MachineError(f"the sandbox did not start: {reason}", where=start.name, fix=fix)
        if stopped is not None:
            return Ran(stopped, None, out, err, clock.seconds)
        return Ran(classify_exit(process.returncode, err), process.returncode, out, err, clock.seconds)


class _Clock:
    """Wall clock that starts when the program is about to start."""

    def __init__(self, ready: int) -> None:
        self.created, self.started, self.ready = time.monotonic(), 0.0, ready
        os.set_blocking(ready, False)

    @property
    def seconds(self) -> float:
        """Return the elapsed seconds."""
        return time.monotonic() - (self.started or self.created)

    def running(self) -> bool:
        """Return whether the program has started."""
        if not self.started:
            with contextlib.suppress(BlockingIOError):
                if os.read(self.ready, 1):
                    self.started = time.monotonic()
        return bool(self.started)


def _follow(
    process: subprocess.Popen[bytes], streams: _Streams, limits: Limits, clock: _Clock, check: Callable[[], None]
) -> Ended | None:
    """Return the limit that was exceeded, or None if the process ended on its own."""
    ended_at: float | None = None
    while True:
        check()
        if not streams.read(_STEP_S):
            return "output"
        if process.poll() is not None:
            ended_at = ended_at or time.monotonic()
            if not streams.open.get_map() or time.monotonic() > ended_at + _AFTER_END_S:
                return None
        elif clock.seconds > (limits.seconds if clock.running() else _TO_START_S):
            return "time"
        elif held_nbytes(descendants(process.pid)) > limits.memory_nbytes:
            return "memory"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants, parents first: killing a sandbox's first process kills all of it."""
    if process.poll() is None:
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # its session, if nothing isolates it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below a process, parents first."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        parent = queue.pop(0)
        with contextlib.suppress(OSError):  # the process may end at any time
            for thread in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208 - every 20 ms
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text()
                queue += [int(child) for child in children.split()]
        pids.append(parent)
    return pids[1:]


def held_nbytes(pids: Sequence[int]) -> int:
    """Return the private memory of processes; pages that are still shared after a fork count for each process."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def sealed(data: bytes) -> int:
    """Return a sealed memory file at its start; its content is never on disk."""
    import fcntl  # noqa: PLC0415 - Linux only

    descriptor = os.memfd_create("halfbyte", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor
