"""Run halfbyte's checks or a shell command against an engine that is ready."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.serve import supervisor
from halfbyte.ui.console import Output

FollowUp = Callable[[str], int]
POLL_S = 0.2


def then_checks(commands: Sequence[Sequence[str]], out: Output) -> FollowUp:
    """Return a function that runs halfbyte's commands on a URL in order until one fails."""

    def run(url: str) -> int:
        for name, *options in commands:
            out.note(f"halfbyte {shlex.join([name, url, *options])}")
            code = run_in_front([*OWN_PYTHON, "-m", "halfbyte", name, url, *options], os.environ)
            if code:
                return code
        return 0

    return run


def then_shell(command: str, served_name: str) -> FollowUp:
    """Return a function that runs a shell command with HALFBYTE_URL and HALFBYTE_MODEL in its environment."""
    return lambda url: run_in_front(
        ["/bin/sh", "-c", command], {**os.environ, "HALFBYTE_URL": url, "HALFBYTE_MODEL": served_name}
    )


def run_in_front(
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
    words = [sys.executable, "-I", "-S", supervisor.__file__, "1", f"{supervisor.IN_FRONT}{read_end}", *command]
    stdin = None if log is None else subprocess.DEVNULL
    # preexec_fn is safe here: it only makes a system call and needs no lock.
    with subprocess.Popen(
        words,
        env=dict(environment),
        pass_fds=(read_end,),
        preexec_fn=_block_front_signals,  # noqa: PLW1509
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


def _block_front_signals() -> None:
    """Block the terminal's signals until the supervisor has installed its handlers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.FRONT_SIGNALS)
