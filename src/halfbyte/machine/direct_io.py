"""Read and write files with O_DIRECT, or through the page cache where the file system does not support it.

A checkpoint is larger than memory and each of its bytes is used once, so the page cache only costs: filling it takes
CPU time from the kernels and evicts the pages of other processes. mmap has two more drawbacks: page faults block the
computing thread, and mapped pages count as resident memory, which hides the real peak. benchmarks/bench_reads.py
compares mmap, pread, pread with POSIX_FADV_DONTNEED, and O_DIRECT; docs/log.md has the results.

Files on tmpfs (/dev/shm) are read and written in place.

O_DIRECT requires whole blocks in aligned memory. Reads are extended to block boundaries. Writes go through a bounce
buffer, except for partial blocks at both ends, which go through the page cache.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halfbyte.machine.os_errors import adding_filename

BLOCK = 4096  # at least any disk's logical block size; also the page size
PIECE_NBYTES = 1 << 24
_SMALL_NBYTES = 1 << 16  # below this, the page cache is faster
_BOUNCE_NBYTES = 1 << 23
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)  # from file systems without O_DIRECT

Bytes = NDArray[np.uint8]


def aligned(nbytes: int) -> Bytes:
    """Return block-aligned memory of at least `nbytes`, rounded up to whole blocks."""
    rounded = -(-nbytes // BLOCK) * BLOCK
    memory = np.empty(rounded + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + rounded]


def in_pieces(read: Callable[[int, int], Bytes], begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
    """Yield a byte range in pieces with their offsets; `read` returns the bytes at an offset."""
    while begin < end:
        stop = min(end, begin // BLOCK * BLOCK + PIECE_NBYTES)
        yield begin, read(begin, stop - begin)
        begin = stop


class _Bounce(threading.local):
    """A bounce buffer per writing thread."""

    def __init__(self) -> None:
        self.memory = aligned(_BOUNCE_NBYTES)


_BOUNCE = _Bounce()


class File:
    """An open file; any thread may read or write at any offset."""

    def __init__(self, path: Path, *, create: bool = False, opened: int | None = None) -> None:
        # O_NOFOLLOW: a planted symlink must not redirect writes.
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW if create else os.O_RDONLY
        self._path = path
        self._buffered = os.open(path, flags | os.O_CLOEXEC, 0o666) if opened is None else opened
        if opened is not None:  # the same file, even if its path was replaced
            path = Path(f"/proc/self/fd/{opened}")
        self.in_memory = _is_in_memory(self._buffered)
        self._mapped: Bytes | None = None
        self._direct = self._blocks = None if self.in_memory else _open_direct(path, writes=create)
        if self._direct is not None:  # the buffered descriptor then only reads small tensors
            os.posix_fadvise(self._buffered, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Close the file and drop its pages from the page cache."""
        self._mapped = None
        os.posix_fadvise(self._buffered, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._buffered)
        if self._blocks is not None:
            os.close(self._blocks)

    def reserve(self, nbytes: int) -> None:
        """Allocate the disk space of the whole file."""
        with adding_filename(self._path):
            os.posix_fallocate(self._buffered, 0, nbytes)
        if self.in_memory and nbytes:  # tmpfs serializes writes to a file, but not copies into a mapping
            self._mapped = np.frombuffer(mmap.mmap(self._buffered, nbytes), np.uint8)

    def sync(self) -> None:
        """Flush the file to disk (fsync)."""
        with adding_filename(self._path):
            os.fsync(self._buffered)

    def read(self, begin: int, nbytes: int) -> Bytes:
        """Return `nbytes` bytes from offset `begin`; raise EOFError if the file is shorter."""
        first = begin // BLOCK * BLOCK
        buffer = aligned(begin - first + nbytes)
        with adding_filename(self._path):
            self._fill(buffer, first, begin - first + nbytes)
        return buffer[begin - first :][:nbytes]

    def read_into(self, begin: int, memory: Bytes) -> None:
        """Fill `memory` from offset `begin`; raise EOFError if the file is shorter. Buffered reads need no copy."""
        if self._direct is not None and len(memory) >= _SMALL_NBYTES:
            memory[:] = self.read(begin, len(memory))
            return
        view, done = memory.data, 0
        while done < len(memory):
            with adding_filename(self._path):
                count = os.preadv(self._buffered, [view[done:]], begin + done)
            if count == 0:
                raise EOFError
            done += count
        if self._direct is None:
            os.posix_fadvise(self._buffered, begin, len(memory), os.POSIX_FADV_DONTNEED)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Yield a byte range in pieces with their offsets, each in its own memory."""
        return in_pieces(self.read, begin, end)

    def write(self, data: memoryview, offset: int) -> None:
        """Write `data` at `offset`."""
        if self._mapped is not None:
            self._mapped[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
            return None
        head = min(-offset % BLOCK, len(data))
        blocks = (len(data) - head) // BLOCK * BLOCK
        if self._direct is None or len(data) < _SMALL_NBYTES:
            return _write_all(self._buffered, data, offset)
        _write_all(self._buffered, data[:head], offset)
        memory = _BOUNCE.memory
        for at in range(head, head + blocks, _BOUNCE_NBYTES):
            count = min(_BOUNCE_NBYTES, head + blocks - at)
            memory[:count] = data[at : at + count]
            self._write_blocks(memory[:count].data, offset + at)
        return _write_all(self._buffered, data[head + blocks :], offset + head + blocks)

    def _write_blocks(self, blocks: memoryview, offset: int) -> None:
        if self._direct is not None:
            try:
                return _write_all(self._direct, blocks, offset)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                self._give_up_direct()
        return _write_all(self._buffered, blocks, offset)

    def _fill(self, buffer: Bytes, first: int, needed: int) -> None:
        """Read whole blocks from the aligned offset `first`; the end of the file may cut the last one short."""
        view, done = buffer.data, 0
        while done < needed:
            # A direct read that ends inside a block has reached the end of the file: continue unaligned and buffered.
            direct = self._direct if needed >= _SMALL_NBYTES and done % BLOCK == 0 else None
            try:
                count = os.preadv(self._buffered if direct is None else direct, [view[done:]], first + done)
            except OSError as error:
                if direct is None or error.errno not in _REFUSALS:
                    raise
                self._give_up_direct()
                continue
            if count == 0:
                raise EOFError
            done += count
        if self._direct is None:
            os.posix_fadvise(self._buffered, first, needed, os.POSIX_FADV_DONTNEED)

    def _give_up_direct(self) -> None:
        """Fall back to the page cache. `close` closes the descriptor, because another thread may be using it."""
        self._direct = None


def _is_in_memory(file: int) -> bool:
    """Return whether a file is on tmpfs, where O_DIRECT has no benefit although newer kernels accept it."""
    device = os.fstat(file).st_dev
    return f"{os.major(device)}:{os.minor(device)}" in _memory_file_systems()


@functools.cache
def _memory_file_systems() -> frozenset[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(line.split()[2] for line in lines if line.partition(" - ")[2].split(" ")[0] == "tmpfs")


def _open_direct(path: Path, *, writes: bool) -> int | None:
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        return os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        return None


def _write_all(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], offset + done)
