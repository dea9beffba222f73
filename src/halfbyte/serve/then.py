"""What happens once an engine answers: halfbyte's own checks by name, or any command, with the URL in hand."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from halfbyte.machine.own_python import OWN_PYTHON
from halfbyte.serve import keeper
from halfbyte.terminal.console import Output

Then = Callable[[str], int]
POLL_S = 0.2


def then_checks(commands: Sequence[Sequence[str]], out: Output) -> Then:
    """Return what runs halfbyte's commands on a URL in order, until one fails."""

    def run(url: str) -> int:
        for name, *options in commands:
            out.note(f"halfbyte {shlex.join([name, url, *options])}")
            code = run_in_front([*OWN_PYTHON, "-m", "halfbyte", name, url, *options], os.environ)
            if code:
                return code
        return 0

    return run


def then_shell(command: str, served_name: str) -> Then:
    """Return what runs a shell command that finds the URL and the model's name in its environment."""
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
    """Run a command in front; return its exit code as a shell does. When we end, however, all it started ends too.

    With a log the command has no input, and all that it prints goes there. `meanwhile` is called a few times a second.
    """
    listens, tells = os.pipe()
    words = [sys.executable, "-I", "-S", keeper.__file__, "1", f"{keeper.IN_FRONT}{listens}", *command]
    nothing = None if log is None else subprocess.DEVNULL
    # No thread of ours holds a lock that one system call could want.
    with subprocess.Popen(
        words,
        env=dict(environment),
        pass_fds=(listens,),
        preexec_fn=_wait_with_signals,  # noqa: PLW1509
        stdin=nothing,
        stdout=log,
        stderr=log,
    ) as process:
        os.close(listens)
        try:
            while meanwhile is not None:
                try:
                    return process.wait(POLL_S)
                except subprocess.TimeoutExpired:
                    meanwhile()
            return process.wait()
        finally:
            os.close(tells)  # which is how the keeper knows that we do not wait any more
            process.wait()


def _wait_with_signals() -> None:
    """A keeper takes a terminal's signals once it knows what to do with them, and not while Python starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, keeper.FRONT_SIGNALS)
