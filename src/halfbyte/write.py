"""Stage 5: whole files or none. A shard grows under a temporary name and is renamed when every byte is on the disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np

from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.direct_io import File
from halfbyte.machine.named_errors import naming
from halfbyte.source.foreign import parsed, plain_bytes

PART = ".part"
WAITING_NBYTES = 1 << 28  # how far ahead of the digest a piece may come and be kept, unless a run has more memory
_HASHERS = ThreadPoolExecutor(8)  # which has no thread before it is used


def write_whole(path: Path, *data: bytes | memoryview) -> None:
    """Write a file of one or more pieces so that readers see all of it or none of it, even after a power cut."""
    part = path.with_name(path.name + PART)
    try:
        with naming(part), open(part, "wb", opener=_no_link) as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()  # on a full disk half a file takes the room that something whole may need
        raise
    sync_folder(path.parent)


def _no_link(path: str, flags: int) -> int:
    """Open what is written; a link that somebody put there would have us write elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(file)
    finally:
        os.close(file)


class ShardFile:
    """One output shard while it grows; threads write tensors at their final offsets in any order."""

    def __init__(
        self, path: Path, head: bytes, nbytes: int, waiting_nbytes: int | None = None, *, mark: str = ""
    ) -> None:
        self.path = path
        self._part = path.with_name(path.name + mark + PART)
        self._nbytes = nbytes
        self._file = File(self._part, create=True)
        # Where the file itself is memory, reading it again costs less than a copy that waits.
        self._digest = OrderedDigest(None if self._file.in_memory else waiting_nbytes)
        try:
            self._file.reserve(nbytes)  # a full disk says so now, not after an hour
        except OSError as error:
            self.abandon()
            raise disk_error(error, path) from None
        self.write(memoryview(head), 0)

    def write(self, data: memoryview, offset: int, *, lent: bool = False) -> None:
        """Write bytes at their place. The digest may read them later; those that are only lent it copies."""
        try:
            self._file.write(data, offset)
        except OSError as error:
            raise disk_error(error, self.path) from None
        self._digest.add(data, offset, lent=lent)

    def finish(self) -> str:
        """Bring every byte to the disk, give the file its name, and return its SHA-256."""
        try:
            self._file.sync()
            digest = self._digest.finish(self._file, self._nbytes)
        except OSError as error:
            self.abandon()
            raise disk_error(error, self.path) from None
        self._file.close()
        self._part.rename(self.path)
        sync_folder(self.path.parent)
        return digest

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class OrderedDigest:
    """SHA-256 of a file whose pieces come in nearly its own order, from any thread.

    A piece is hashed from memory as soon as all before it are; one that comes a little early waits. Pieces far ahead
    are not kept: from the first gap on, `finish` reads the file.
    """

    def __init__(self, waiting_nbytes: int | None = None) -> None:
        self._sha256 = hashlib.sha256()
        self._ahead = WAITING_NBYTES if waiting_nbytes is None else waiting_nbytes
        self._at = 0
        self._waiting: dict[int, memoryview] = {}
        self._hashing, self._lock = False, threading.Lock()
        self._elsewhere: Future[None] | None = None

    def add(self, data: memoryview, offset: int, *, lent: bool = False) -> None:
        """Take a piece, and hash what is in order, unless another thread is at it: then that one goes on with it."""
        if not data or offset - self._at > self._ahead:
            return
        if lent:  # a copy, without the interpreter's lock, and hashed elsewhere: its owner waits for it
            data = np.array(data).data
        with self._lock:
            self._waiting[offset] = data
            if self._hashing:
                return
            self._hashing = True
        if lent:
            self._elsewhere = _HASHERS.submit(self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        while (piece := self._next()) is not None:
            self._sha256.update(piece)  # without the lock: this takes a hundredth of a second

    def _next(self) -> memoryview | None:
        with self._lock:
            piece = self._waiting.pop(self._at, None)
            self._at += len(piece or b"")
            self._hashing = piece is not None
            return piece

    def finish(self, file: File, nbytes: int) -> str:
        """Read what is still missing; return the digest."""
        if self._elsewhere is not None:
            self._elsewhere.result()
        for _, piece in file.pieces(self._at, nbytes):
            self._sha256.update(piece.data)
        return self._sha256.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read once and not kept in memory."""
    file = File(path)
    try:
        return OrderedDigest().finish(file, path.stat().st_size)
    finally:
        file.close()


def disk_error(error: OSError, path: Path, kept: str = "finished shards") -> MachineError:
    """Say what the disk said, and that running again goes on."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write: {error.strerror}"
    fix = f"free some space and run the same command again: {kept} are kept" if full else _check(kept)
    return MachineError(what, where=str(path), fix=fix)


def cannot_go_on(error: OSError, folder: Path, kept: str = "finished shards") -> MachineError:
    """Say what the operating system said of which file, in a run that may have been reading or writing it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_error(error, folder, kept)
    what = f"cannot go on: {error.strerror or error}"
    return MachineError(what, where=str(error.filename or folder), fix=_check(kept))


def _check(kept: str) -> str:
    return f"check the disk and the folder, then run the same command again: {kept} are kept"


class Journal:
    """One JSON line for each finished shard, appended and synced: the memory of a run that was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def lines(self) -> list[dict[str, Any]]:
        """Return what was written; a line that a kill tore does not count."""
        found: list[dict[str, Any]] = []
        try:
            text = plain_bytes(self._path).decode(errors="replace")
        except FileNotFoundError:
            return found
        except OSError as error:
            if error.errno == errno.EIO:  # the disk's fault: nothing is to be removed
                raise cannot_go_on(error, self._path) from None
            what = f"the journal cannot be read: {error.strerror}"
            raise UsageError(what, where=str(self._path), fix="remove the folder and begin anew") from None
        for line in text.splitlines():
            try:
                entry = parsed(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(cast("dict[str, Any]", entry))
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Append a line and bring it to the disk. A newline goes first, so that a torn line before it stays alone."""
        data = f"\n{json.dumps(entry, sort_keys=True)}\n".encode()
        with self._lock, naming(self._path), self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
