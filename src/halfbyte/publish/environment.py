"""Describe the code and the machine, without paths, user names, host names or environment variables."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import halfbyte
from halfbyte.doctor.facts import examine, package_version

PACKAGES = (
    "torch", "numpy", "numba", "safetensors", "transformers", "tokenizers", "triton", "huggingface_hub", "vllm",
    "lm_eval",
)  # fmt: skip
_GIT_TIMEOUT_S = 10


def code() -> dict[str, Any]:
    """Return the version of halfbyte, its commit if known, and whether the source tree has changes."""
    return {"version": halfbyte.__version__, **(_checkout() or _installed() or {"commit": None})}


def _checkout() -> Mapping[str, Any] | None:
    """Return the commit of the Git checkout that halfbyte runs from, if it does."""
    root = Path(halfbyte.__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "pyproject.toml").is_file():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--", "src"))}


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _installed() -> Mapping[str, Any] | None:
    """Return the commit that pip recorded for an installation from a repository."""
    try:
        origin: Any = json.loads(distribution("halfbyte").read_text("direct_url.json") or "{}")
        return {"commit": str(origin["vcs_info"]["commit_id"])}
    except (PackageNotFoundError, ValueError, KeyError, TypeError):
        return None


def environment() -> dict[str, Any]:
    """Return the versions of Python and libraries, the CPU, the GPUs and the operating system."""
    machine = examine()
    return {
        "python": platform.python_version(),
        "packages": {name: installed for name in PACKAGES if (installed := package_version(name)) is not None},
        "cpu": machine.cpu.model,
        "gpu": None if machine.gpus is None else [gpu.name for gpu in machine.gpus],
        "torch_build": machine.torch_build,
        "os": f"{platform.system()} {platform.machine()}",
    }
