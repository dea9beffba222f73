"""A running engine under its supervisor process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from halfbyte.serve import supervisor
from halfbyte.serve.log_file import new_log

SUPERVISOR = Path(supervisor.__file__)


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
