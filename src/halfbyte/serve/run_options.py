"""Check the options of `serve --run`, and refuse those that would have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfbyte.errors import UsageError
from halfbyte.serve.gpus import Gpus, known_gpus, parse_gpus
from halfbyte.serve.host_memory import host_memory_nbytes
from halfbyte.serve.installed import Installed
from halfbyte.serve.launch import CPU, Launch

_ROCM = "vllm-rocm"
# Options that write a script, and why --run refuses them.
_FOR_SCRIPTS = {
    "docker": ("--docker", "--run starts the installed engine, not a container"),
    "write_to": ("--write", "--run starts the engine and writes no scripts"),
}


def refuse_beside_run(choice: Mapping[str, Any]) -> None:
    """Refuse options that contradict --run or have no effect with it."""
    for name, (option, why) in _FOR_SCRIPTS.items():
        if choice[name]:
            raise UsageError(why, where=option, fix=f"omit --run or {option}")
    if any(setting.partition("=")[0].strip() in ("host", "port") for setting in choice["given"]):
        what = "--run listens on 127.0.0.1 at --port; --set cannot change that"
        raise UsageError(what, where="--set", fix="omit it, or omit --run for a script with that address")
    if choice["emulate"] and choice["hub"]:
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
