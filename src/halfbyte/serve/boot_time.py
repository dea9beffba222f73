"""How long an engine took to answer, and how much of the checkpoint was in memory when it began: cold or warm.

The first start reads a checkpoint from the disk, the next one from the page cache, and the times differ several times
over; so neither is told without the other figure. Whoever is started after the engine (`--then`, `--exec`) finds both
in the environment.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "HALFBYTE_BOOT"
COLD, WARM = 0.05, 0.95  # of the checkpoint's bytes in the page cache: at most, at least
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of one engine."""

    url: str
    seconds: float
    cached: float | None  # share of the checkpoint's bytes in the page cache before the start

    @property
    def kind(self) -> str:
        """Cold, warm, or what is between."""
        if self.cached is None:
            return "unknown"
        return "cold" if self.cached <= COLD else "warm" if self.cached >= WARM else "partly warm"

    def sentence(self) -> str:
        """Say it."""
        how = "" if self.cached is None else f", {self.cached:.0%} of the checkpoint in the page cache before"
        return f"answered {self.seconds:.0f} s after its start ({self.kind}{how})"


def cached_before(command: Sequence[str]) -> float | None:
    """Return the share of the checkpoint in a command that is in the page cache; None where nobody can tell."""
    folders = [Path(word) for word in command if "/" in word and (Path(word) / "config.json").is_file()]
    files = [path for folder in folders[:1] for path in sorted(folder.glob("*.safetensors"))]
    found = [cached_pages(path) for path in files]
    if not found or None in found:
        return None
    pages = sum(one[1] for one in found if one is not None)
    return sum(one[0] for one in found if one is not None) / pages if pages else None


def cached_pages(path: Path) -> tuple[int, int] | None:
    """Return how many pages of a file are in the page cache, and how many it has; None where the system hides it."""
    try:
        if not os.access(path, os.W_OK) and path.stat().st_uid != os.geteuid():
            return None  # Linux says "all" then
        with path.open("rb") as file:
            return _resident(file.fileno(), path.stat().st_size)
    except (OSError, AttributeError):
        return None


def _resident(descriptor: int, nbytes: int) -> tuple[int, int] | None:
    if not nbytes:
        return 0, 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    place = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)  # no page is read by this
    if place in (None, _FAILED):
        return None
    try:
        pages = -(-nbytes // mmap.PAGESIZE)
        flags = ctypes.create_string_buffer(pages)
        if libc.mincore(place, nbytes, flags):
            return None
        return sum(byte & 1 for byte in flags.raw), pages
    finally:
        libc.munmap(place, nbytes)


def tell(boot: Boot) -> None:
    """Leave it in the environment for whatever is started now."""
    os.environ[VARIABLE] = json.dumps(asdict(boot))


def told(url: str) -> Boot | None:
    """Return what was told of the engine at an address; None if halfbyte did not start it."""
    try:
        boot = Boot(**json.loads(os.environ.get(VARIABLE, "")))
    except (ValueError, TypeError):
        return None
    return boot if boot.url.rstrip("/") == url.rstrip("/") else None
