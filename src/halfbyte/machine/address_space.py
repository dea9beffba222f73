"""Check the address-space limit (RLIMIT_AS, `ulimit -v`) before a run starts.

Python cannot reliably pass an error between threads once the address space is exhausted. Of 150 runs with 1 to 83 MB
left, 7 hung waiting for a dead thread and 14 were aborted by a library without a message. benchmarks/starved_runs.py
measures this and the address space that runs need.
"""

from __future__ import annotations

import sys
from pathlib import Path

from halfbyte.errors import MachineError
from halfbyte.machine.cores import run_threads
from halfbyte.ui.units import size

_LIBRARIES_NBYTES = 1 << 30  # libraries and kernels that are not loaded yet: 0.4 GB on two cores
_PYTORCH_NBYTES = 5 << 29  # measured: 1.2 to 1.4 GB, including its threads
_THREAD_NBYTES = 72 << 20  # stack and malloc arena


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
