"""Supervisor process that starts an engine and terminates its whole process tree.

An engine is a tree of processes (vLLM: a web server, an engine core, a worker per GPU). Any of them may leave its
process group, hang, or lose its parent. The supervisor is a child subreaper and adopts the orphans. It terminates the
tree on request, when the engine's first process exits, and when the parent process dies, even by SIGKILL: the pipe
between the two then closes.

It runs as a script in an isolated Python, so it starts fast and needs no package. It reads single-letter commands from
stdin (`s` stop, `k` kill immediately), writes the engine's log to stderr and the engine's exit code to stdout.

The foreground commands of `--then` and `--exec` have a supervisor too (`foreground=FD`). It shares the terminal, input
and output with halfbyte, so Ctrl-C works as usual, and reads its commands from FD. It exits with the command's code.
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
# Seconds to wait after SIGINT, which every engine handles, after SIGTERM, and after each of the kill rounds.
INTERRUPTED_S, TERMINATED_S, LEFT_S, KILLED_S = 15.0, 5.0, 2.0, 10.0
ENDS_ITSELF_S = 2.0
NOT_STARTED = 127  # the shell's "command not found"
TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # sent by a terminal to its foreground process group
FOREGROUND = "--foreground="
_NO_SIGNAL = 0
# Signals handled here, signals ignored by Python, and SIGINT, which shells ignore for background jobs.
_NOT_INHERITED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main(patience: float, command: list[str], foreground: int | None = None) -> int:
    """Run the command until it exits or is stopped, and report its exit code on stdout; return 0.

    With `foreground`, return the command's exit code, as a shell does. `patience` multiplies all timeouts.
    """
    _prctl(_SET_CHILD_SUBREAPER, 1)  # orphans become our children, so /proc still leads to them
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # wakes the poll through the pipe
    requested = {"stop": False}
    signal.signal(signal.SIGTERM, lambda _number, _frame: requested.update(stop=True))
    engine = _start(command) if foreground is None else _start_in_foreground(command)
    code = _wait_for_exit(engine, woken, requested, patience, foreground)
    left = _terminate_descendants(patience, at_once=code is None)
    code = -signal.SIGKILL if code is None else code
    if foreground is not None:
        return code if code >= 0 else 128 - code
    with contextlib.suppress(BrokenPipeError):  # halfbyte is gone
        os.write(1, f"ended {code} {' '.join(map(str, left))}\n".encode())
    return 0


def _start(command: list[str]) -> int:
    """Start the engine in a new session, which a terminal's Ctrl-C does not reach; return its process id."""
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        end_with_parent()  # in case the supervisor itself is killed
        if os.getppid() != supervisor:
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


def _start_in_foreground(command: list[str]) -> int:
    """Start a command in our process group; the terminal's signals are handled by it and by halfbyte, not here."""
    before = {number: signal.getsignal(number) for number in TERMINAL_SIGNALS}
    for number in TERMINAL_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)  # halfbyte blocked them until our handlers were set
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        end_with_parent()
        if os.getppid() != supervisor:
            os._exit(NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in _NOT_INHERITED:
            signal.signal(number, signal.SIG_DFL)
        for number, handler in before.items():  # signals ignored by the parent (nohup) stay ignored
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode(errors="replace"))
    os._exit(NOT_STARTED)


def _wait_for_exit(
    engine: int, woken: int, requested: dict[str, bool], patience: float, foreground: int | None = None
) -> int | None:
    """Wait for the engine's first process and signal it when asked to stop; return its exit code or minus its signal.

    Return None if it does not exit in time or must be killed immediately.
    """
    stages: list[tuple[int, float]] = [(signal.SIGINT, INTERRUPTED_S), (signal.SIGTERM, TERMINATED_S)]
    if foreground is not None:  # it received the terminal's Ctrl-C too and may exit without another signal
        stages = [(_NO_SIGNAL, ENDS_ITSELF_S), (signal.SIGTERM, TERMINATED_S)]
    commands = 0 if foreground is None else foreground
    listening, until = [commands, woken], None
    while True:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        ready = _readable(listening, timeout)
        if woken in ready:
            os.read(woken, 4096)
        code = _reaped(engine)
        if code is not None:
            return code
        letters = os.read(commands, 64) if commands in ready else b"-"
        if not letters:  # halfbyte is gone
            listening.remove(commands)
        if KILL in letters:
            return None
        stop = until is None and (not letters or STOP in letters or requested["stop"])
        if stop or (until is not None and time.monotonic() >= until):
            if not stages:
                return None
            number, seconds = stages.pop(0)
            if foreground is None:
                _signal_group(engine, number)
            else:  # its group is halfbyte's
                _signal_all(descendants(os.getpid()), number)
            until = time.monotonic() + seconds * patience


def _readable(descriptors: list[int], timeout: float | None) -> list[int]:
    """Wait until one of the descriptors is readable or closed; select() rejects numbers above 1,023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1_000)]


def _terminate_descendants(patience: float, *, at_once: bool) -> list[int]:
    """Terminate the remaining processes; return the ids of those that survive SIGKILL, blocked in a driver or disk I/O.

    Unless `at_once`, they first get a moment to exit after the engine's first process.
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
    """Reap all exited child processes; return the engine's exit code if it is one of them."""
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
    """Return all descendants of a process, in any process group or session."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has just exited
                after_name = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                children.setdefault(int(after_name[1]), []).append(int(folder.name))
    result: list[int] = []
    pending = [of]
    while pending:
        direct = children.get(pending.pop(), [])
        result += direct
        pending += direct
    return result


def _kill(processes: list[int]) -> None:
    """Kill processes except Python's resource trackers, which clean up shared memory and then exit."""
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
    """Have Linux send SIGTERM to this process when its parent dies."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Call prctl where it exists; the pipe to halfbyte works without it."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    patience, *words = sys.argv[1:]
    foreground = words.pop(0).removeprefix(FOREGROUND) if words[0].startswith(FOREGROUND) else None
    sys.exit(main(float(patience), words, None if foreground is None else int(foreground)))
