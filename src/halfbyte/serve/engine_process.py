"""Processes under a supervisor: a running engine, and the commands that run against it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.serve import supervisor
from halfbyte.serve.engine_log import new_log
from halfbyte.ui.console import Output

SUPERVISOR = Path(supervisor.__file__)

FollowUp = Callable[[str], int]
POLL_S = 0.2


class EngineProcess:
    """An engine and all its processes. The supervisor terminates them even if this process dies."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, patience: float = 1.0
    ) -> None:
        """Start the command with exactly this environment and write its output to a new log.

        `patience` multiplies the time that the supervisor gives the engine to exit.
        """
        self._ended: tuple[int, list[int]] | None = None
        with new_log(log) as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), str(patience), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return the engine's exit code, or minus its signal; None while any of its processes runs."""
        if self._ended is None and self._supervisor.poll() is not None:
            self._ended = _report(self._supervisor.communicate()[0])
        return None if self._ended is None else self._ended[0]

    def processes(self) -> list[int]:
        """Return the ids of the engine's processes, in any process group or session."""
        return supervisor.descendants(self._supervisor.pid)

    def stop(self) -> list[int]:
        """Stop the engine gracefully, then by force; return the ids of processes that survive SIGKILL."""
        self._send(supervisor.STOP)
        return self.wait()

    def kill(self) -> None:
        """Kill the engine immediately. Safe in a signal handler."""
        self._send(supervisor.KILL)

    def wait(self) -> list[int]:
        """Wait until the engine has exited; return the ids of processes that are left."""
        self._supervisor.wait()
        self.exit_code()
        return self._ended[1] if self._ended else []

    def _send(self, command: bytes) -> None:
        if self._supervisor.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has exited
                os.write(self._supervisor.stdin.fileno(), command)


def describe_exit(code: int) -> str:
    """Describe an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _report(output: bytes) -> tuple[int, list[int]]:
    """Parse the supervisor's report; without a report it was killed, and its engine with it."""
    words = output.decode(errors="replace").split()
    if words[:1] != ["ended"]:
        return -signal.SIGKILL, []
    code, *left = map(int, words[1:])
    return code, left


def then_checks(commands: Sequence[Sequence[str]], out: Output) -> FollowUp:
    """Return a function that runs halfbyte's commands on a URL in order until one fails."""

    def run(url: str) -> int:
        for name, *options in commands:
            out.note(f"halfbyte {shlex.join([name, url, *options])}")
            code = run_foreground([*OWN_PYTHON, "-m", "halfbyte", name, url, *options], os.environ)
            if code:
                return code
        return 0

    return run


def then_shell(command: str, served_name: str) -> FollowUp:
    """Return a function that runs a shell command with HALFBYTE_URL and HALFBYTE_MODEL in its environment."""
    return lambda url: run_foreground(
        ["/bin/sh", "-c", command], {**os.environ, "HALFBYTE_URL": url, "HALFBYTE_MODEL": served_name}
    )


def run_foreground(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: BinaryIO | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> int:
    """Run a command in the foreground under a supervisor, which terminates it if we die; return its exit code.

    With a log the command has no input and its output goes to the log. `meanwhile` is called every POLL_S seconds.
    """
    read_end, write_end = os.pipe()
    words = [sys.executable, "-I", "-S", supervisor.__file__, "1", f"{supervisor.FOREGROUND}{read_end}", *command]
    stdin = None if log is None else subprocess.DEVNULL
    # preexec_fn is safe here: it only makes a system call and needs no lock.
    with subprocess.Popen(
        words,
        env=dict(environment),
        pass_fds=(read_end,),
        preexec_fn=_block_terminal_signals,  # noqa: PLW1509
        stdin=stdin,
        stdout=log,
        stderr=log,
    ) as process:
        os.close(read_end)
        try:
            while meanwhile is not None:
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    meanwhile()
            return process.wait()
        finally:
            os.close(write_end)  # tells the supervisor to stop the command
            process.wait()


def _block_terminal_signals() -> None:
    """Block the terminal's signals until the supervisor has installed its handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.TERMINAL_SIGNALS)
