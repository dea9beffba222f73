"""Host memory: how much the machine has, how much is free, and the limit of the control groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from halfbyte.machine.cgroup import memory_limit


@dataclass(frozen=True, slots=True)
class Memory:
    """Host memory in bytes; the limit is the smallest one of the enclosing cgroups."""

    total_nbytes: int | None
    available_nbytes: int | None
    limit_nbytes: int | None


def memory_facts(root: Path = Path("/")) -> Memory:
    """Read total and available memory, and the cgroup limit."""
    meminfo = proc_table(root / "proc/meminfo")
    return Memory(
        total_nbytes=_kib(meminfo.get("MemTotal")),
        available_nbytes=_kib(meminfo.get("MemAvailable")),
        limit_nbytes=memory_limit(root),
    )


def proc_table(path: Path) -> dict[str, str]:
    """Read a `key : value` file of /proc; the first value wins for repeated keys (one block per core)."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = [line.partition(":")[::2] for line in reversed(lines) if ":" in line]
    return {key.strip(): value.strip() for key, value in pairs}


def _kib(text: str | None) -> int | None:
    return int(text.split()[0]) * 1024 if text else None
