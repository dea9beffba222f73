"""No sandbox: the program as this user, with the limits of the kernel and nothing else. Only where someone asked."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from halfbyte.sandbox.bubblewrap import ENVIRONMENT, LAUNCHER, PYTHON_OPTIONS
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.ran import Ran
from halfbyte.sandbox.watching import Start, watch


class Bare:
    """Runs programs that can read, send and delete whatever this user can."""

    name = "no sandbox"

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program, in a folder that is removed after it."""
        with tempfile.TemporaryDirectory(prefix="halfbyte-bare-", ignore_cleanup_errors=True) as folder:
            program = Path(folder, "program.py")
            program.write_bytes(source.encode(errors="surrogatepass"))
            wanted = {name: value for name, value in limits.of_the_kernel().items() if name != "RLIMIT_NPROC"}
            text = ",".join(f"{name}={value}" for name, value in wanted.items())  # this user has other processes too
            command = [sys.executable, "-I", "-S", "-c", LAUNCHER, text, "2", sys.executable, *PYTHON_OPTIONS]
            nowhere = os.open(os.devnull, os.O_WRONLY)  # where the launcher says that it started: nobody listens
            try:
                command[6] = str(nowhere)
                start = Start([*command, str(program)], os.environ | ENVIRONMENT, folder, files=[nowhere])
                return watch(start, limits, stdin)
            finally:
                os.close(nowhere)
