"""Read the memory and CPU limits of this process's control groups (cgroup v1 and v2)."""

from __future__ import annotations

from pathlib import Path

_UNLIMITED_V1 = 1 << 60  # cgroup v1 reports "no limit" as a number near 2**63


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit in bytes, if there is one."""
    texts = [*_values(root, "", "memory.max"), *_values(root, "memory", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _UNLIMITED_V1), default=None)


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return the CPU quota in cores, if there is one."""
    pairs = [
        *(text.split() for text in _values(root, "", "cpu.max")),
        *zip(_values(root, "cpu", "cpu.cfs_quota_us"), _values(root, "cpu", "cpu.cfs_period_us"), strict=False),
    ]
    limits = [int(quota) / int(period) for quota, period in pairs if quota.isdigit() and int(period)]
    return min(limits, default=None)


def _values(root: Path, controller: str, name: str) -> list[str]:
    """Read a control file of this process's cgroup and its ancestors; controller "" means v2."""
    try:
        rows = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    values: list[str] = []
    for top in (root / "sys/fs/cgroup" / controller, root / "sys/fs/cgroup/unified"):
        for _, controllers, path in rows:
            if controller in controllers.split(","):
                inner = top / path.lstrip("/")
                files = [folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
                values += [file.read_text().strip() for file in files if file.is_file()]
    return values
