"""A limit of addresses (`ulimit -v`, or a scheduler's): what is left of it is looked at before any work begins.

Where they run out in the middle, Python cannot even hand an error from one thread to another: of 150 runs that had 1 to
83 MB left, 7 waited for ever for a thread that was gone, and 14 were ended by a library without a word. That, and what
runs need, is measured by benchmarks/starved_runs.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

from halfbyte.errors import MachineError
from halfbyte.numerics.chunks import run_threads
from halfbyte.terminal.units import size

_LIBRARIES_NBYTES = 1 << 30  # what is still to be loaded and compiled: 0.4 GB on two cores
_PYTORCH_NBYTES = 5 << 29  # 1.2 to 1.4 GB with what it starts
_THREAD_NBYTES = 72 << 20  # its stack, and what malloc sets apart for it


def refuse_few_addresses(held_nbytes: int, threads: int | None, *, measures: bool) -> None:
    """Refuse a limit under which a run that holds so many bytes at once might not come to its end."""
    left = addresses_left()
    if left is None:
        return
    needed = _LIBRARIES_NBYTES + held_nbytes + _THREAD_NBYTES * (threads or run_threads())
    if measures and "torch" not in sys.modules:
        needed += _PYTORCH_NBYTES
    if left < needed:
        what = f"this run may need {size(needed)} of address space, and a limit leaves {size(left)}"
        fix = "raise the limit (`ulimit -v unlimited`, or your job's memory), or give fewer --threads"
        raise MachineError(what, where="ulimit -v", fix=fix)


def addresses_left() -> int | None:
    """Return how many bytes this process may still map; None where nothing limits them, or nobody can tell."""
    if sys.platform != "linux":
        return None
    import resource  # noqa: PLC0415 - which Windows does not have

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return max(limit - pages * resource.getpagesize(), 0)
