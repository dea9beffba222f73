"""No sandbox: run the program as this user with kernel limits only. Used only on request."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from halfbyte.sandbox.bubblewrap import ENVIRONMENT, LAUNCHER, PYTHON_OPTIONS
from halfbyte.sandbox.limits import Limits
from halfbyte.sandbox.process_watch import Start, watch
from halfbyte.sandbox.result import Ran


class Bare:
    """Run programs with all rights of this user."""

    name = "no sandbox"

    def run(self, source: str, limits: Limits, stdin: str = "") -> Ran:
        """Run one program in a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="halfbyte-bare-", ignore_cleanup_errors=True) as folder:
            program = Path(folder, "program.py")
            program.write_bytes(source.encode(errors="surrogatepass"))
            # RLIMIT_NPROC would count all processes of this user.
            rlimits = {name: value for name, value in limits.rlimits().items() if name != "RLIMIT_NPROC"}
            text = ",".join(f"{name}={value}" for name, value in rlimits.items())
            ready_read, ready_write = os.pipe()
            try:
                launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, text, str(ready_write)]
                command = [*launcher, sys.executable, *PYTHON_OPTIONS, str(program)]
                start = Start(self.name, command, ready_read, os.environ | ENVIRONMENT, folder, files=[ready_write])
                return watch(start, limits, stdin)
            finally:
                os.close(ready_read)
                os.close(ready_write)
