"""Check that a model's weights fit into this machine's memory, for engines that run on its CPU.

Only the weights are checked, because a separate setting bounds the KV cache. With the vLLM plugin experts are BF16, and
other weights have the dtype of the engine, FP32 by default.
"""

from __future__ import annotations

from halfbyte.errors import CheckFailedError
from halfbyte.machine.resources import memory_facts
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import EXPERTS, Needs
from halfbyte.ui.units import size

_WIDE = ("float32", "float")  # values of --dtype for FP32, which is twice BF16


def host_memory_nbytes() -> int:
    """Return the bytes of memory available to a process; 0 if unknown."""
    memory = memory_facts()
    return min((nbytes for nbytes in (memory.total_nbytes, memory.limit_nbytes) if nbytes), default=0)


def weights_nbytes(needs: Needs, *, emulate: bool, dtype: str | None) -> int:
    """Return the bytes of the weights in memory; with `emulate`, `needs` are those after the expansion to BF16."""
    times = 2 if dtype in _WIDE else 1
    return sum(part.nbytes * (1 if emulate and part.placed == EXPERTS else times) for part in needs.parts)


def refuse_too_large(needs: Needs, machine: Gpus, *, emulate: bool, dtype: str | None) -> None:
    """Raise CheckFailedError if the weights exceed this machine's memory; do nothing if its size is unknown."""
    nbytes = weights_nbytes(needs, emulate=emulate, dtype=dtype)
    if not machine.memory_nbytes or nbytes <= machine.memory_nbytes:
        return
    how = "expanded to BF16" if emulate else f"as {dtype or 'they are stored'}"
    needed, memory = size(nbytes), size(machine.memory_nbytes)
    what = f"it does not fit this machine: the weights {how} need {needed}, the machine has {memory}"
    fix = "use a machine with more memory, or replace --run with --gpus to get a script"
    raise CheckFailedError(what, where="--run", fix=fix)
