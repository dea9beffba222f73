"""The check `audit --engine vllm`: the installed vLLM's own classes take every tensor, and fill every parameter.

The other checks know vLLM's rules; this one asks vLLM. It needs no GPU and reads no weight, see `native_load.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from halfbyte.audit.evidence import Evidence
from halfbyte.audit.findings import Finding, bad, count, good, note
from halfbyte.errors import MachineError
from halfbyte.machine.own_python import OWN_PYTHON
from halfbyte.plan.engine_config import MODELOPT_FILE
from halfbyte.source.foreign import read_json

CHECK = "vllm"
_FIX = "compare the list of unquantized modules in config.json, the experts it promises, and the tensors that are there"
_WRONG: Mapping[str, tuple[str, str]] = {
    "missing": ("parts of parameters that no tensor fills", "vLLM would compute with whatever lies in that memory"),
    "dropped": ("tensors that vLLM drops", "the engine would serve another model than the one that is stored"),
    "twice": ("parts of parameters that several tensors fill", "the last one would win"),
    "doubtful": ("tensors of another type or size than their parameter", "vLLM would convert them without a word"),
}
# No network, no telemetry; the CPU build would otherwise guess how much memory its cache may take.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def vllm_version() -> str:
    """Return the version of the installed vLLM; MachineError without one."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        what, fix = "vLLM is not installed in this environment", "`make vllm`, pip install vllm, or leave --engine out"
        raise MachineError(what, where="--engine vllm", fix=fix) from None


def native(evidence: Evidence) -> list[Finding]:
    """Let vLLM parse the config, build the model and load every name, and say what was left over or left empty."""
    release = vllm_version()
    if not evidence.checkpoint.config or evidence.unreadable:
        return [note(CHECK, "not checked: config.json or a shard cannot be read")]
    return findings(_ask(evidence), release)


def findings(result: Mapping[str, Any], release: str) -> list[Finding]:
    """Say what came of it."""
    if result["error"] is not None:
        where = f" at {result['tensor']}" if result.get("tensor") else ""
        said = str(result["error"]).splitlines()[0][:300]
        why = f"vLLM {release} would stop while it {'loads weights' if result['stage'] == 'load' else 'starts'}"
        return [bad(CHECK, f"vLLM refuses it{where}: {said}", why=why, fix=_FIX)]
    found = [
        bad(CHECK, f"{len(result[kind]):,} {what}", why=why, fix=_FIX, examples=result[kind])
        for kind, (what, why) in _WRONG.items()
        if result[kind]
    ]
    if not found:
        filled = count(len(result["parameters"]) - len(result["defaulted"]), "parameter")
        found.append(good(CHECK, f"vLLM {release} takes {count(result['tensors'], 'tensor')} and fills {filled}"))
    if result["unused_kv_scales"]:
        text = f"vLLM {release} does not use the {count(len(result['unused_kv_scales']), 'scale')} of the KV cache"
        found.append(note(CHECK, text, why="it has no place for them in latent attention, and keeps its scale of 1"))
    return found


def _ask(evidence: Evidence) -> Mapping[str, Any]:
    checkpoint = evidence.checkpoint
    legacy = checkpoint.root / MODELOPT_FILE
    case = {
        "name": checkpoint.root.name,
        "config": checkpoint.config,
        "modelopt_file": read_json(legacy) if legacy.is_file() else None,
        "tensors": [tensor[:3] for tensor in checkpoint.tensors.values()],
    }
    with tempfile.TemporaryDirectory() as folder:
        cases, results = Path(folder) / "cases.json", Path(folder) / "results.json"
        cases.write_text(json.dumps([case]))
        command = [*OWN_PYTHON, "-m", "halfbyte.audit.native_load", str(cases), str(results)]
        environment = {**ENVIRONMENT, **os.environ}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
            fix = "this check knows vLLM 0.32; leave --engine out with another release"
            raise MachineError(f"vLLM could not be asked: {last}", where="--engine vllm", fix=fix)
        (result,) = cast("list[dict[str, Any]]", json.loads(results.read_text()))
    return result
