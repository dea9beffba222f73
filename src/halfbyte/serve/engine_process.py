"""A running engine: started under its keeper, asked whether it lives, stopped with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from halfbyte.serve import keeper
from halfbyte.serve.log_file import new_log

KEEPER = Path(keeper.__file__)


class EngineProcess:
    """An engine and all its processes. Whatever happens to halfbyte, the keeper ends them."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, patience: float = 1.0
    ) -> None:
        """Start the command with exactly this environment; its output goes into a new file.

        `patience` multiplies the seconds that the keeper gives the engine to end by itself.
        """
        self._ended: tuple[int, list[int]] | None = None
        with new_log(log) as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(patience), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return how the engine ended (minus the signal, if one ended it); None while any of its processes runs."""
        if self._ended is None and self._keeper.poll() is not None:
            self._ended = _report(self._keeper.communicate()[0])
        return None if self._ended is None else self._ended[0]

    def processes(self) -> list[int]:
        """Return the ids of the engine's processes, whatever group or session they are in."""
        return keeper.descendants(self._keeper.pid)

    def stop(self) -> list[int]:
        """End the engine politely, then by force; return the ids of processes that even that did not end."""
        self._tell(keeper.STOP)
        return self.wait()

    def kill(self) -> None:
        """End the engine at once. Safe in a signal handler."""
        self._tell(keeper.KILL)

    def wait(self) -> list[int]:
        """Wait for the end; return the ids of processes that are left."""
        self._keeper.wait()
        self.exit_code()
        return self._ended[1] if self._ended else []

    def _tell(self, word: bytes) -> None:
        if self._keeper.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                os.write(self._keeper.stdin.fileno(), word)


def how_it_ended(code: int) -> str:
    """Return the words for an exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _report(said: bytes) -> tuple[int, list[int]]:
    """Read the keeper's last words; a keeper without any was killed, and its engine with it."""
    words = said.decode(errors="replace").split()
    if words[:1] != ["ended"]:
        return -signal.SIGKILL, []
    code, *left = map(int, words[1:])
    return code, left
