"""The check `audit --engine vllm`: the installed vLLM uses every tensor and fills every parameter.

The other checks reimplement vLLM's rules. This one runs vLLM itself, without a GPU or weights, see `vllm_load.py`.
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

from halfbyte.audit.findings import Finding, bad, count, good, note
from halfbyte.audit.inputs import Evidence
from halfbyte.checkpoint.untrusted_files import read_json
from halfbyte.errors import MachineError
from halfbyte.machine.python_path import OWN_PYTHON
from halfbyte.plan.quantization_config import MODELOPT_FILE

CHECK = "vllm"
_FIX = "compare the ignore list and the number of experts in config.json with the stored tensors"
_WRONG: Mapping[str, tuple[str, str]] = {
    "missing": ("parts of parameters that no tensor fills", "vLLM would compute with uninitialized memory"),
    "dropped": ("tensors that vLLM drops", "the engine would serve a different model"),
    "twice": ("parts of parameters that several tensors fill", "the last one would win"),
    "doubtful": ("tensors of another type or size than their parameter", "vLLM would convert them silently"),
}
# No network and no telemetry. The KV cache size is set because the CPU build would otherwise guess it.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def vllm_version() -> str:
    """Return the version of the installed vLLM; raise MachineError if it is not installed."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        what, fix = "vLLM is not installed in this environment", "run `make vllm` or pip install vllm, or omit --engine"
        raise MachineError(what, where="--engine vllm", fix=fix) from None


def native(evidence: Evidence) -> list[Finding]:
    """Let vLLM parse the config, build the model and load every name; report unused tensors and unfilled parameters."""
    release = vllm_version()
    if not evidence.checkpoint.config or evidence.unreadable:
        return [note(CHECK, "not checked: config.json or a shard cannot be read")]
    return findings(_run(evidence), release)


def findings(result: Mapping[str, Any], release: str) -> list[Finding]:
    """Turn the result into findings."""
    if result["error"] is not None:
        where = f" at {result['tensor']}" if result.get("tensor") else ""
        message = str(result["error"]).splitlines()[0][:300]
        why = f"vLLM {release} would fail while {'loading weights' if result['stage'] == 'load' else 'starting'}"
        return [bad(CHECK, f"vLLM fails{where}: {message}", why=why, fix=_FIX)]
    problems = [
        bad(CHECK, f"{len(result[kind]):,} {what}", why=why, fix=_FIX, examples=result[kind])
        for kind, (what, why) in _WRONG.items()
        if result[kind]
    ]
    if not problems:
        filled = count(len(result["parameters"]) - len(result["defaulted"]), "parameter")
        problems.append(good(CHECK, f"vLLM {release} loads {count(result['tensors'], 'tensor')} and fills {filled}"))
    if result["unused_kv_scales"]:
        text = f"vLLM {release} does not use the {count(len(result['unused_kv_scales']), 'scale')} of the KV cache"
        why = "its loader looks them up under a name that MLA does not use, and falls back to 1"
        problems.append(note(CHECK, text, why=why))
    return problems


def _run(evidence: Evidence) -> Mapping[str, Any]:
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
        command = [*OWN_PYTHON, "-m", "halfbyte.audit.vllm_load", str(cases), str(results)]
        environment = {**ENVIRONMENT, **os.environ}
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["no error message"])[-1][:300]
            fix = "this check supports vLLM 0.32; omit --engine with other versions"
            raise MachineError(f"the vLLM check failed: {last}", where="--engine vllm", fix=fix)
        (result,) = cast("list[dict[str, Any]]", json.loads(results.read_text()))
    return result
