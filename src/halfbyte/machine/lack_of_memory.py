"""Memory that does not suffice, whoever says so: it is this machine's, or a limit's, and no bug of ours."""

from __future__ import annotations

import errno

from halfbyte.errors import MachineError
from halfbyte.machine.address_space import addresses_left

# How C++, PyTorch, its oneDNN, and Python where it makes a lock or starts a thread, say it.
_WORDS = (
    "std::bad_alloc", "can't allocate", "not enough memory", "could not create a primitive", "can't start new thread",
)  # fmt: skip
# libc's words and llvmlite's: a library that cannot be loaded under a limit is too large for it.
_LIBRARY = "shared object"


def lack_of_memory(error: BaseException) -> MachineError | None:
    """Return what to tell somebody whose command ended in this error; None where memory is not the reason."""
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    told = isinstance(error, OSError) and error.errno == errno.ENOMEM
    unloaded = isinstance(error, (ImportError, OSError)) and _LIBRARY in str(error) and addresses_left() is not None
    if not (said or told or unloaded or isinstance(error, MemoryError)):
        return None
    fix = "free some memory, raise the limit (ulimit -v) or give fewer --threads, then run the same command again"
    return MachineError("there is not enough memory", where="this machine", fix=fix)
