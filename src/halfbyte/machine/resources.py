"""Cores, memory and address space that this process may use.

Limits come from cgroups (v1 and v2), CPU affinity and RLIMIT_AS (`ulimit -v`). Python cannot reliably pass an error
between threads once the address space is exhausted: of 150 runs with 1 to 83 MB left, 7 hung waiting for a dead thread
and 14 were aborted by a library without a message. benchmarks/starved_runs.py measures this and the address space that
runs need, so `refuse_few_addresses` checks it before a run starts.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from halfbyte.errors import MachineError
from halfbyte.ui.units import size

_UNLIMITED_V1 = 1 << 60  # cgroup v1 reports "no limit" as a number near 2**63
_LIBRARIES_NBYTES = 1 << 30  # libraries and kernels that are not loaded yet: 0.4 GB on two cores
_PYTORCH_NBYTES = 5 << 29  # measured: 1.2 to 1.4 GB, including its threads
_THREAD_NBYTES = 72 << 20  # stack and malloc arena


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


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()  # a container's limit may be lower than the machine's cores
    return cores if limit is None else max(1, min(cores, int(limit)))


def run_threads() -> int:
    """Return the number of threads of a run: one per core, and two more to overlap disk I/O."""
    return usable_cores() + 2


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


def refuse_few_addresses(held_nbytes: int, threads: int | None, *, measures: bool) -> None:
    """Raise if the address-space limit may be too low for a run with this peak memory."""
    left = addresses_left()
    if left is None:
        return
    needed = _LIBRARIES_NBYTES + held_nbytes + _THREAD_NBYTES * (threads or run_threads())
    if measures and "torch" not in sys.modules:
        needed += _PYTORCH_NBYTES
    if left < needed:
        what = f"this run may need {size(needed)} of address space, but the limit leaves {size(left)}"
        fix = "raise the limit (`ulimit -v unlimited`, or the job's memory), or use fewer --threads"
        raise MachineError(what, where="ulimit -v", fix=fix)


def addresses_left() -> int | None:
    """Return the number of bytes that this process can still map; None if unlimited or unknown."""
    if sys.platform != "linux":
        return None
    import resource  # noqa: PLC0415 - not available on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(limit - pages * resource.getpagesize(), 0)
