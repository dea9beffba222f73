"""Check an output folder after a fault: every file is either complete or clearly marked as temporary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.numpy

JOURNAL, PLAN = "halfbyte/journal.jsonl", "halfbyte/plan.json"
HASHED = "halfbyte/hashed.json"  # sizes, times and inodes of these very files
_CHANGES = {PLAN, "halfbyte/verified.json", HASHED}  # written more than once: whole, and not always as in the end


def files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of every file; a journal without its times."""
    return {name: _digest(path) for name, path in files(folder).items() if name != HASHED}


def _digest(path: Path) -> str:
    if path.name != "journal.jsonl":
        return hashlib.sha256(path.read_bytes()).hexdigest()
    said = {json.dumps({key: value for key, value in line.items() if key != "seconds"}) for line in _lines(path)}
    return hashlib.sha256("\n".join(sorted(said)).encode()).hexdigest()


def _lines(journal: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal. A line torn by a kill stays on its own line and is ignored."""
    found = []
    for line in filter(None, journal.read_text().split("\n")):
        try:
            found.append(json.loads(line))
        except ValueError:
            assert line.startswith("{")
    return found


def refuse_torn(folder: Path, whole: dict[str, str]) -> None:
    """Check that every file is final or has a temporary name."""
    for name, path in files(folder).items():
        if name.endswith(".part"):
            continue
        if name == JOURNAL:
            _refuse_lies(folder, path, whole)
        elif name in _CHANGES:
            json.loads(path.read_text())
        elif name in whole:
            assert _digest(path) == whole[name], f"{name} has its name and is not whole"
        else:  # statistics of a layer, and hidden states before one
            assert path.name.startswith(("layer-", "hidden-")), f"{name} is in no undisturbed run"
            safetensors.safe_open(path, "np")


def _refuse_lies(folder: Path, journal: Path, whole: dict[str, str]) -> None:
    for line in _lines(journal):
        assert line["sha256"] == whole[line["shard"]]
        assert (folder / line["shard"]).exists()
