"""Resources that this process holds now: memory, descriptors, threads, processes, and the files that it left behind.

Only Linux reports all of it (/proc). A process that one of our children left behind becomes a child of the supervisor
above us, which reaps it like init. Processes that still run there are orphans; without it they would not be counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
LEAVING_S = 3.0  # time that a process may take to end
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_PAGE = os.sysconf("SC_PAGE_SIZE")


def under_keeper() -> None:
    """Continue as the child of a process that only adopts and reaps orphans."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt orphans")
    child = os.fork()
    if not child:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the child, which ends with its verdict
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def take_census(folders: Mapping[str, Path], keeper: int | None = None) -> dict[str, int]:
    """Count everything; `folders` are those whose files are counted, by the name of the count."""
    gc.collect()  # uncollected garbage is not a leak
    children, orphans = settled(keeper)
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())) - 1,  # one is for the listing
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "children": sum(state != "Z" for state in children.values()),
        "zombies": sum(state == "Z" for state in children.values()),
        "orphans": len(orphans),
        **{name: count_files(folder) for name, folder in folders.items()},
        **shared_memory(),
        "objects": len(gc.get_objects()),
    }


def settled(keeper: int | None) -> tuple[dict[int, str], dict[int, str]]:
    """Return our children and the keeper's other ones, after those that are ending have ended."""
    patience = time.monotonic() + LEAVING_S
    while True:
        children = children_of(os.getpid())
        orphans = {} if keeper is None else children_of(keeper)
        orphans.pop(os.getpid(), None)
        if not (children or orphans) or time.monotonic() > patience:
            return children, orphans
        time.sleep(0.05)


def children_of(parent: int) -> dict[int, str]:
    """Return the processes whose parent this one is, by their state (`Z`: ended but not reaped)."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{parent}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):  # or a process
                    found[int(child)] = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
    return found


def count_files(folder: Path) -> int:
    """Count everything below a folder, folders too."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def shared_memory() -> dict[str, int]:
    """Return the number and size of our files in shared memory."""
    sizes: list[int] = []
    if SHARED_MEMORY.is_dir():
        for path in SHARED_MEMORY.iterdir():
            with contextlib.suppress(OSError):
                about = path.lstat()
                if about.st_uid == os.getuid():
                    sizes.append(about.st_size)
    return {"shared_files": len(sizes), "shared_nbytes": sum(sizes)}
