"""Whether a model's weights find room in the memory of this machine, for engines that compute on its CPU.

Of a CPU the cache is bounded by a setting of its own, so that weights are what can be too large: the plugin's experts
are BF16, and everything else is as wide as what the engine computes in, FP32 here.
"""

from __future__ import annotations

from halfbyte.errors import CheckFailedError
from halfbyte.machine.doctor import memory_facts
from halfbyte.serve.gpus import Gpus
from halfbyte.serve.needs import EXPERTS, Needs
from halfbyte.terminal.units import size

_WIDE = ("float32", "float")  # as --dtype spells FP32, which is twice BF16


def host_memory_nbytes() -> int:
    """Return the bytes that a process may use here; 0 where nobody tells."""
    memory = memory_facts()
    return min((nbytes for nbytes in (memory.total_nbytes, memory.limit_nbytes) if nbytes), default=0)


def weights_nbytes(needs: Needs, *, emulate: bool, dtype: str | None) -> int:
    """Return what the weights take in memory; `needs` are those of BF16 already where they are expanded."""
    times = 2 if dtype in _WIDE else 1
    return sum(part.nbytes * (1 if emulate and part.placed == EXPERTS else times) for part in needs.parts)


def refuse_too_large(needs: Needs, machine: Gpus, *, emulate: bool, dtype: str | None) -> None:
    """Refuse weights that this machine has no memory for; one whose memory is not known is asked nothing."""
    nbytes = weights_nbytes(needs, emulate=emulate, dtype=dtype)
    if not machine.memory_nbytes or nbytes <= machine.memory_nbytes:
        return
    how = "expanded to BF16" if emulate else f"as {dtype or 'they are stored'}"
    what = f"it does not fit this machine: the weights, {how}, take {size(nbytes)} of {size(machine.memory_nbytes)}"
    fix = "run it where there is more memory, or leave out --run and name --gpus for a script"
    raise CheckFailedError(what, where="--run", fix=fix)
