"""Choose the best sandbox of this machine, once per process, and run programs in it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halfbyte.errors import MachineError
from halfbyte.machine.extras import install_extra
from halfbyte.sandbox import bubblewrap, wasm
from halfbyte.sandbox.bubblewrap import ENVIRONMENT, LAUNCHER, PYTHON_OPTIONS
from halfbyte.sandbox.process import Limits, Ran, Start, watch
from halfbyte.sandbox.self_test import Engine, run_self_test


class Unsandboxed:
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


Kind = Literal["isolated", "wasm", "bare", "none"]
_lock = threading.Lock()
_cached: list[Tier] = []


@dataclass(frozen=True, slots=True)
class Tier:
    """Where programs run. With `none`, probes and tasks that need a sandbox are skipped, never passed."""

    kind: Kind
    engine: Engine | None
    reason: str = ""  # why no better tier works

    @property
    def sentence(self) -> str:
        """Return a description for reports."""
        kinds: dict[Kind, str] = {
            "isolated": "isolated by",
            "wasm": "in WebAssembly:",
            "bare": "bare, as requested:",
            "none": "none",
        }
        return " ".join(part for part in (kinds[self.kind], self.engine.name if self.engine else "") if part) + (
            f" ({self.reason})" if self.reason else ""
        )


def find_tier(*, allow_bare: bool = False) -> Tier:
    """Return the best tier that passes the self-test; `bare` only if allowed and nothing else works."""
    with _lock:
        if not _cached:
            _cached.append(_detect())
        tier = _cached[0]
    return Tier("bare", Unsandboxed(), tier.reason) if tier.kind == "none" and allow_bare else tier


def _detect() -> Tier:
    engines, problems = bubblewrap.candidates()
    for engine in engines:
        problem = run_self_test(engine)
        if problem is None:
            return Tier("isolated", engine)
        problems.append(f"{engine.wrapper.path}: {problem}")
    wasm_engine = wasm.find()
    if isinstance(wasm_engine, str):
        return Tier("none", None, "; ".join([*problems, wasm_engine]))
    problem = run_self_test(wasm_engine, forks=False)
    if problem is None:
        return Tier("wasm", wasm_engine, "; ".join(problems))
    return Tier("none", None, "; ".join([*problems, f"{wasm_engine.name}: {problem}"]))


_DEFAULT = Limits()


def run_python(source: str, *, tier: Tier | None = None, limits: Limits = _DEFAULT, stdin: str = "") -> Ran:
    """Run a program with limits on time, memory, processes and output. Thread-safe."""
    tier = tier or find_tier()
    if tier.engine is None:
        raise no_sandbox(tier)
    return tier.engine.run(source, limits, stdin)


def no_sandbox(tier: Tier) -> MachineError:
    """Return the error for a machine without a sandbox."""
    what = "no sandbox available for model-written programs, so they are not run"
    fix = f"install bubblewrap, or {install_extra('sandbox')}; see `halfbyte doctor`"
    return MachineError(what, where=tier.reason, fix=fix)
