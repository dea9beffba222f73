"""Files read and written past the page cache (O_DIRECT) where the file system can, and through it where it cannot.

A checkpoint is larger than memory and each of its bytes is used once, so the page cache can only cost: filling it takes
processor time that the kernels need, and what it holds pushes out what others use. benchmarks/bench_reads.py measures
mmap, pread, pread that forgets, and O_DIRECT; docs/log.md has the figures. mmap loses twice: a page fault blocks the
thread that computes, and mapped pages count as resident memory, so that "one layer in memory" could not be seen.

Files in memory (/dev/shm) are read and written in place.

O_DIRECT wants whole blocks in aligned memory. Reads are widened to blocks; writes go through a bounce buffer, and their
first and last bytes, which share a block with a neighbour, go through the page cache.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from halfbyte.machine.named_errors import naming

BLOCK = 4096  # as large as any disk's logical block, and the page cache's page
PIECE_NBYTES = 1 << 24
_SMALL_NBYTES = 1 << 16  # below this the page cache is quicker than two edges and a request
_BOUNCE_NBYTES = 1 << 23
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)  # what file systems say that cannot do it

Bytes = NDArray[np.uint8]


def aligned(nbytes: int) -> Bytes:
    """Return memory for whole blocks, at least `nbytes`."""
    whole = -(-nbytes // BLOCK) * BLOCK
    memory = np.empty(whole + BLOCK, np.uint8)
    start = -memory.ctypes.data % BLOCK
    return memory[start : start + whole]


class _Bounce(threading.local):
    """A buffer for each thread that writes."""

    def __init__(self) -> None:
        self.memory = aligned(_BOUNCE_NBYTES)


_BOUNCE = _Bounce()


class File:
    """An open file; any thread may read or write at any place."""

    def __init__(self, path: Path, *, create: bool = False, opened: int | None = None) -> None:
        # A link that somebody put where we write would have us write elsewhere.
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW if create else os.O_RDONLY
        self._path = path
        self._buffered = os.open(path, flags | os.O_CLOEXEC, 0o666) if opened is None else opened
        if opened is not None:  # the same file, whatever lies under its name by now
            path = Path(f"/proc/self/fd/{opened}")
        self.in_memory = _is_in_memory(self._buffered)
        self._mapped: Bytes | None = None
        self._direct = self._blocks = None if self.in_memory else _open_direct(path, writes=create)
        if self._direct is not None:  # then this one reads scalars here and there
            os.posix_fadvise(self._buffered, 0, 0, os.POSIX_FADV_RANDOM)

    def close(self) -> None:
        """Close it; nothing is left in the page cache."""
        self._mapped = None
        os.posix_fadvise(self._buffered, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._buffered)
        if self._blocks is not None:
            os.close(self._blocks)

    def reserve(self, nbytes: int) -> None:
        """Take the disk space of the whole file."""
        with naming(self._path):
            os.posix_fallocate(self._buffered, 0, nbytes)
        if self.in_memory and nbytes:  # where writes to one file wait for each other, and copies into it do not
            self._mapped = np.frombuffer(mmap.mmap(self._buffered, nbytes), np.uint8)

    def sync(self) -> None:
        """Bring every byte to the disk."""
        with naming(self._path):
            os.fsync(self._buffered)

    def read(self, begin: int, nbytes: int) -> Bytes:
        """Return some bytes; EOFError where the file ends before."""
        first = begin // BLOCK * BLOCK
        buffer = aligned(begin - first + nbytes)
        with naming(self._path):
            self._fill(buffer, first, begin - first + nbytes)
        return buffer[begin - first :][:nbytes]

    def read_into(self, begin: int, memory: Bytes) -> None:
        """Fill memory; EOFError where the file ends before. Without a direct path there is no copy in between."""
        if self._direct is not None and len(memory) >= _SMALL_NBYTES:
            memory[:] = self.read(begin, len(memory))
            return
        view, done = memory.data, 0
        while done < len(memory):
            with naming(self._path):
                count = os.preadv(self._buffered, [view[done:]], begin + done)
            if count == 0:
                raise EOFError
            done += count
        if self._direct is None:
            os.posix_fadvise(self._buffered, begin, len(memory), os.POSIX_FADV_DONTNEED)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Yield a long stretch in pieces with their offsets, each in memory of its own."""
        while begin < end:
            stop = min(end, begin // BLOCK * BLOCK + PIECE_NBYTES)
            yield begin, self.read(begin, stop - begin)
            begin = stop

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at their place."""
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
        """Read from a block's begin on; the last block is read whole where the file has it."""
        view, done = buffer.data, 0
        while done < needed:
            # A direct read that ends inside a block has met the end of the file; anything after it is not for blocks.
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
        """Go on through the page cache. The descriptor is closed at the end: another thread may be using it."""
        self._direct = None


def _is_in_memory(file: int) -> bool:
    """Whether a file lies in memory itself (tmpfs): there is no cache to go past, though newer kernels let one try."""
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
