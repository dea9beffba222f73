"""What happens once an engine answers: halfbyte's own checks by name, or any command, with the URL in hand."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from halfbyte.console import Output
from halfbyte.serve.keeper import end_with_parent

# A terminal's Ctrl-C has reached the command as well: it may end by itself first.
_ENDS_ITSELF_S, _TERMINATES_S = 2.0, 5.0

Then = Callable[[str], int]


def then_checks(commands: Sequence[Sequence[str]], out: Output) -> Then:
    """Return what runs halfbyte's commands on a URL in order, until one fails."""

    def run(url: str) -> int:
        for name, *options in commands:
            out.note(f"halfbyte {shlex.join([name, url, *options])}")
            code = _run([sys.executable, "-m", "halfbyte", name, url, *options], os.environ)
            if code:
                return code
        return 0

    return run


def then_shell(command: str, served_name: str) -> Then:
    """Return what runs a shell command that finds the URL and the model's name in its environment."""
    return lambda url: _run(
        ["/bin/sh", "-c", command], {**os.environ, "HALFBYTE_URL": url, "HALFBYTE_MODEL": served_name}
    )


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in front; return its exit code as a shell does. When we are stopped, it is stopped as well."""
    # No thread of ours holds a lock that one system call could want.
    with subprocess.Popen(command, env=dict(environment), preexec_fn=end_with_parent) as process:  # noqa: PLW1509
        try:
            code = process.wait()
        except BaseException:
            for seconds, end in ((_ENDS_ITSELF_S, process.terminate), (_TERMINATES_S, process.kill)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
                end()  # nothing, if it has ended
            raise
    return code if code >= 0 else 128 - code
