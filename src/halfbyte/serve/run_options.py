"""What `--run` makes of the options: one that would do nothing here is refused, not passed over in silence."""

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
# Options that ask for a script, and why --run has no use for them.
_FOR_SCRIPTS = {
    "docker": ("--docker", "--run starts the engine that is installed here, not a container"),
    "write_to": ("--write", "--run starts the engine and writes no scripts"),
}


def refuse_beside_run(choice: Mapping[str, Any]) -> None:
    """Refuse options that contradict --run, or do nothing beside it."""
    for name, (option, why) in _FOR_SCRIPTS.items():
        if choice[name]:
            raise UsageError(why, where=option, fix=f"leave out --run or {option}")
    if any(one.partition("=")[0].strip() in ("host", "port") for one in choice["given"]):
        what = "--run listens on 127.0.0.1, where it waits for the engine, at --port"
        raise UsageError(what, where="--set", fix="leave it out, or leave out --run for a script with that address")
    if choice["emulate"] and choice["hub"]:
        what = "--emulate checks and expands the files of a folder, and --hub lets the engine load others"
        raise UsageError(what, where="--hub", fix="leave out --hub: OUT itself is then served")


def gpus_here(asked: str | None, local: Installed) -> Gpus:
    """Return what the installed engine computes on: the CPU, or the GPUs that the user names."""
    if asked is None and local.device != CPU.vendor:
        fix = f"add --gpus 8xB200 or the like ({', '.join(known_gpus())})"
        raise UsageError("nobody said which GPUs these are", where="--gpus", fix=fix)
    if asked is None:
        return replace(CPU, memory_nbytes=host_memory_nbytes())
    gpus = parse_gpus(asked)
    if local.device == CPU.vendor:
        what = f"{local.engine} {local.version}, which is installed here, computes on the CPU"
        raise UsageError(what, where=f"--gpus {asked}", fix="leave out --gpus, or leave out --run for a script")
    return gpus


def engine_here(asked: str | None, local: Installed) -> str:
    """Return the engine by the name that decides its settings; another build than the installed one is refused."""
    build = _ROCM if local.engine == "vllm" and "rocm" in local.version else local.engine
    if asked not in (None, build):
        what = f"{local.engine} {local.version}, which is installed here, is {build} and not {asked}"
        raise UsageError(what, where=f"--engine {asked}", fix=f"write --engine {build}, or leave it out")
    return build


def loads_from_hub(made: Launch) -> bool:
    """Return whether the engine must be allowed to ask the Hub: for the model itself, or for a draft."""
    return made.folder is None or (made.draft is not None and not Path(made.draft).is_dir())
