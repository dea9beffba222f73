"""The process between halfbyte and an engine: it starts the engine, and sees to it that nothing of it stays behind.

An engine is a tree of processes (vLLM: a web server, an engine core, a worker for each GPU), each of which may leave
its process group, hang, or lose its parent. So one small process stands above the tree and adopts its orphans. It ends
the tree when halfbyte says so, when the engine's first process ends, and when halfbyte goes away for any reason, also
by SIGKILL: the pipe between the two then closes by itself.

It runs as a script in a bare Python, so that it starts at once and needs no package. Its stdin takes one letter a
command (`s` stop, `k` kill at once); its stderr is the engine's log; on stdout it says how the engine ended.

What `--then` and `--exec` run in front has a keeper too (`front=FD`): it shares terminal, input and output with
halfbyte, so that Ctrl-C reaches it as ever, and the letters come through FD. Its exit code is the keeper's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

STOP, KILL = b"s", b"k"
# First what a terminal's Ctrl-C does, which every engine handles; then harder. Seconds each of them gets.
INTERRUPTED_S, TERMINATED_S, LEFT_S, KILLED_S = 15.0, 5.0, 2.0, 10.0
ENDS_ITSELF_S = 2.0
NOT_STARTED = 127  # as in shells
FRONT_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # what a terminal sends to all in front
IN_FRONT = "--front="
_NO_SIGNAL = 0
# What we handle, what Python ignores, and SIGINT, which a shell ignores for what it starts in the background.
_NOT_INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main(patience: float, command: list[str], front: int | None = None) -> int:
    """Run the command until it ends or is ended; say how; return 0, in front its exit code as a shell has it.

    All waiting is multiplied by `patience`.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)  # who loses its parent becomes our child: /proc then still leads to it
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # noted through the pipe
    asked = {"stop": False}
    signal.signal(signal.SIGTERM, lambda _number, _frame: asked.update(stop=True))
    engine = _start(command) if front is None else _start_in_front(command)
    code = _until_it_ends(engine, woken, asked, patience, front)
    left = _end_the_rest(patience, at_once=code is None)
    code = -signal.SIGKILL if code is None else code
    if front is not None:
        return code if code >= 0 else 128 - code
    with contextlib.suppress(BrokenPipeError):  # halfbyte is gone
        os.write(1, f"ended {code} {' '.join(map(str, left))}\n".encode())
    return 0


def _start(command: list[str]) -> int:
    """Start the engine in a session of its own, which a terminal's Ctrl-C does not reach; return its process id."""
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        end_with_parent()  # for a keeper that is killed itself
        if os.getppid() != keeper:
            os._exit(NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in _NOT_INHERITED:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode(errors="replace"))
    os._exit(NOT_STARTED)


def _start_in_front(command: list[str]) -> int:
    """Start a command where we are ourselves; a terminal's signals are for it and for halfbyte, and not for us."""
    before = {one: signal.getsignal(one) for one in FRONT_SIGNALS}
    for one in FRONT_SIGNALS:
        signal.signal(one, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FRONT_SIGNALS)  # halfbyte blocked them until we could take them
    keeper = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent()
        if os.getppid() != keeper:
            os._exit(NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in _NOT_INHERITED:
            signal.signal(number, signal.SIG_DFL)
        for one, handler in before.items():  # what whoever started us ignores (nohup) stays ignored
            signal.signal(one, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode(errors="replace"))
    os._exit(NOT_STARTED)


def _until_it_ends(
    engine: int, woken: int, asked: dict[str, bool], patience: float, front: int | None = None
) -> int | None:
    """Wait for the engine's first process, asking it to end when told to; return its exit code, or minus its signal.

    None: it does not end by itself, or shall not have the time.
    """
    stages: list[tuple[int, float]] = [(signal.SIGINT, INTERRUPTED_S), (signal.SIGTERM, TERMINATED_S)]
    if front is not None:  # a terminal's Ctrl-C has reached it as well: it may end by itself first
        stages = [(_NO_SIGNAL, ENDS_ITSELF_S), (signal.SIGTERM, TERMINATED_S)]
    told_by = 0 if front is None else front
    listening, until = [told_by, woken], None
    while True:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        ready, _, _ = select.select(listening, [], [], timeout)
        if woken in ready:
            os.read(woken, 4096)
        code = _reaped(engine)
        if code is not None:
            return code
        word = os.read(told_by, 64) if told_by in ready else b"-"
        if not word:  # halfbyte is gone
            listening.remove(told_by)
        if KILL in word:
            return None
        told = until is None and (not word or STOP in word or asked["stop"])
        if told or (until is not None and time.monotonic() >= until):
            if not stages:
                return None
            number, seconds = stages.pop(0)
            if front is None:
                _signal_group(engine, number)
            else:  # its group is halfbyte's
                _signal_all(descendants(os.getpid()), number)
            until = time.monotonic() + seconds * patience


def _end_the_rest(patience: float, *, at_once: bool) -> list[int]:
    """End what is left; return the ids of those that nothing ends: they wait in the kernel, for a driver or a disk.

    Where the engine's first process has ended by itself, the others get a moment to do the same.
    """
    for seconds, act in ((0.0 if at_once else LEFT_S, None), (LEFT_S, _kill), (KILLED_S, _kill_all)):
        left = descendants(os.getpid())
        if act is not None:
            act(left)
        until = time.monotonic() + seconds * patience
        while left and time.monotonic() < until:
            time.sleep(0.02)
            _reaped(0)
            left = descendants(os.getpid())
    return descendants(os.getpid())


def _reaped(engine: int) -> int | None:
    """Bury every child that has ended; return the engine's exit code if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == engine:
                code = os.waitstatus_to_exitcode(status)
    return code


def descendants(of: int) -> list[int]:
    """Return every process below a process, whatever its group or session."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has just ended
                after_name = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(folder.name))
    found: list[int] = []
    below = [of]
    while below:
        mine = children.get(below.pop(), [])
        found += mine
        below += mine
    return found


def _kill(processes: list[int]) -> None:
    """Kill processes, but not Python's resource trackers: they remove the others' shared memory, then end."""
    _kill_all([pid for pid in processes if not _tracks_resources(pid)])


def _tracks_resources(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _kill_all(processes: list[int]) -> None:
    _signal_all(processes, signal.SIGKILL)


def _signal_all(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _signal_group(engine: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(engine, number)


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however that ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Ask Linux for something that it may not have; the pipe to halfbyte works without."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    patience, *words = sys.argv[1:]
    asked_front = words.pop(0).removeprefix(IN_FRONT) if words[0].startswith(IN_FRONT) else None
    sys.exit(main(float(patience), words, None if asked_front is None else int(asked_front)))
