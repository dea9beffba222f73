"""Errors of the operating system: out of memory, disks, missing file names."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from halfbyte.errors import MachineError
from halfbyte.machine.resources import addresses_left

# Messages of C++, PyTorch, oneDNN, and Python (creating a lock, starting a thread).
_MESSAGES = (
    "std::bad_alloc", "can't allocate", "not enough memory", "could not create a primitive", "can't start new thread",
)  # fmt: skip
# libc and llvmlite: a shared library that fails to load under an address-space limit is too large for it.
_LIBRARY = "shared object"


def out_of_memory_error(error: BaseException) -> MachineError | None:
    """Return the error to report if `error` means out of memory, else None."""
    runtime = isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
    enomem = isinstance(error, OSError) and error.errno == errno.ENOMEM
    unloaded = isinstance(error, (ImportError, OSError)) and _LIBRARY in str(error) and addresses_left() is not None
    if not (runtime or enomem or unloaded or isinstance(error, MemoryError)):
        return None
    fix = "free some memory, raise the limit (ulimit -v) or use fewer --threads, then run the same command again"
    return MachineError("out of memory", where="this machine", fix=fix)


def os_error(error: OSError) -> MachineError:
    """Convert an OSError (full disk, missing folder) to a MachineError."""
    what, where = f"cannot continue: {error.strerror or error}", str(error.filename or "output")
    return out_of_memory_error(error) or MachineError(what, where=where, fix="check the disk and the folder")


@contextmanager
def adding_filename(path: Path) -> Generator[None]:
    """Set `filename` on OSErrors that lack it, so that messages name the right disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
