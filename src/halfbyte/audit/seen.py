"""Which files an audit saw: their sizes and times of change, which tell later whether its findings are still theirs."""

from __future__ import annotations

from pathlib import Path

from halfbyte.plan.engine_config import MODELOPT_FILE
from halfbyte.source.checkpoint import CONFIG, INDEX

SEEN = "files"  # the key in audit.json


def files_seen(folder: Path) -> dict[str, list[int]]:
    """Return size and time of change, in nanoseconds, of every file that engines take weights or formats from."""
    names = [path.name for path in folder.glob("*.safetensors")] + [CONFIG, INDEX, MODELOPT_FILE]
    found: dict[str, list[int]] = {}
    for name in sorted(names):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        found[name] = [status.st_size, status.st_mtime_ns]
    return found
