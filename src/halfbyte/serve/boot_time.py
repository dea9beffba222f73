"""Measure an engine's startup time and how much of the checkpoint was in the page cache: cold or warm.

A cold start reads the checkpoint from disk and takes several times as long as a warm one, so both figures are reported
together. The commands of `--then` and `--exec` find them in the environment.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from halfbyte.evidence.benchmark import BootTime

VARIABLE = "HALFBYTE_BOOT"
COLD, WARM = 0.05, 0.95  # share of the checkpoint in the page cache: at most, at least
_FAILED = ctypes.c_void_p(-1).value


def boot_time_of(url: str, seconds: float, cached: float | None) -> BootTime:
    """Return one start of one engine; `cached` is the share of the checkpoint in the page cache before it."""
    if cached is None:
        return BootTime(url=url, seconds=seconds, cached=None, kind="unknown")
    kind = "cold" if cached <= COLD else "warm" if cached >= WARM else "partly warm"
    return BootTime(url=url, seconds=seconds, cached=cached, kind=kind)


def cached_before(command: Sequence[str]) -> float | None:
    """Return the share of a command's checkpoint that is in the page cache, or None if it is not known."""
    folders = [Path(word) for word in command if "/" in word and (Path(word) / "config.json").is_file()]
    files = [path for folder in folders[:1] for path in sorted(folder.glob("*.safetensors"))]
    counts = [cached_pages(path) for path in files]
    if not counts or None in counts:
        return None
    pages = sum(count[1] for count in counts if count is not None)
    return sum(count[0] for count in counts if count is not None) / pages if pages else None


def cached_pages(path: Path) -> tuple[int, int] | None:
    """Return how many pages of a file are in the page cache and how many it has, or None if the system hides it."""
    try:
        if not os.access(path, os.W_OK) and path.stat().st_uid != os.geteuid():
            return None  # Linux then reports all pages as cached
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
    address = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)  # reads no page
    if address in (None, _FAILED):
        return None
    try:
        pages = -(-nbytes // mmap.PAGESIZE)
        flags = ctypes.create_string_buffer(pages)
        if libc.mincore(address, nbytes, flags):
            return None
        return sum(byte & 1 for byte in flags.raw), pages
    finally:
        libc.munmap(address, nbytes)


def record_boot(boot: BootTime) -> None:
    """Put the start into the environment of later child processes."""
    os.environ[VARIABLE] = json.dumps(asdict(boot))


def reported_boot(url: str) -> BootTime | None:
    """Return the recorded start of the engine at a URL; None if halfbyte did not start it."""
    try:
        boot = BootTime(**json.loads(os.environ.get(VARIABLE, "")))
    except (ValueError, TypeError):
        return None
    return boot if boot.url.rstrip("/") == url.rstrip("/") else None
