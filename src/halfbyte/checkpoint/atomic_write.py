"""Atomic, durable writes. Each file grows under a temporary name and is renamed once it is synced."""

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

from halfbyte.checkpoint.untrusted_files import parsed, plain_bytes
from halfbyte.errors import MachineError, UsageError
from halfbyte.machine.direct_io import File
from halfbyte.machine.os_errors import adding_filename

PART = ".part"
WAITING_NBYTES = 1 << 28  # default limit on how far ahead of the digest a piece may be buffered
_HASHERS = ThreadPoolExecutor(8)  # starts its threads on first use


def write_whole(path: Path, *data: bytes | memoryview) -> None:
    """Write a file atomically and durably: readers see the complete file or none, even after a power failure."""
    part = path.with_name(path.name + PART)
    try:
        with adding_filename(part), open(part, "wb", opener=_open_nofollow) as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()  # frees the space when the disk is full
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically and durably."""
    write_whole(path, (json.dumps(value, indent=1) + "\n").encode())


def _open_nofollow(path: str, flags: int) -> int:
    """Open a file for writing without following a symlink, which could redirect the write to another file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with adding_filename(folder):
            os.fsync(file)
    finally:
        os.close(file)


class ShardFile:
    """An output shard being written. Threads write tensors at their final offsets in any order."""

    def __init__(
        self, path: Path, head: bytes, nbytes: int, waiting_nbytes: int | None = None, *, mark: str = ""
    ) -> None:
        self.path = path
        self._part = path.with_name(path.name + mark + PART)
        self._nbytes = nbytes
        self._file = File(self._part, create=True)
        # On tmpfs, reading the file again is cheaper than buffering copies for the digest.
        self._digest = OrderedDigest(None if self._file.in_memory else waiting_nbytes)
        try:
            self._file.reserve(nbytes)  # fail now if the disk is full
        except OSError as error:
            self.abandon()
            raise disk_error(error, path) from None
        self.write(memoryview(head), 0)

    def write(self, data: memoryview, offset: int, *, lent: bool = False) -> None:
        """Write bytes at an offset. The digest may read `data` later; set `lent` to make it copy the bytes."""
        try:
            self._file.write(data, offset)
        except OSError as error:
            raise disk_error(error, self.path) from None
        self._digest.add(data, offset, lent=lent)

    def finish(self) -> str:
        """Sync the file, rename it to its final name, and return its SHA-256."""
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
        """Close and delete the partial file."""
        self._file.close()
        self._part.unlink(missing_ok=True)


class OrderedDigest:
    """SHA-256 of a file whose pieces arrive almost in order, from any thread.

    A piece is hashed from memory once all pieces before it are hashed; pieces that arrive slightly early are buffered.
    Pieces further ahead are not buffered: `finish` reads the file from the first gap on.
    """

    def __init__(self, waiting_nbytes: int | None = None) -> None:
        self._sha256 = hashlib.sha256()
        self._max_ahead = WAITING_NBYTES if waiting_nbytes is None else waiting_nbytes
        self._at = 0
        self._waiting: dict[int, memoryview] = {}
        self._hashing, self._lock = False, threading.Lock()
        self._background: Future[None] | None = None

    def add(self, data: memoryview, offset: int, *, lent: bool = False) -> None:
        """Add a piece and hash all pieces that are in order, unless another thread is already hashing them."""
        if not data or offset - self._at > self._max_ahead:
            return
        if lent:  # copy without the GIL and hash in the background: the caller waits for its buffer
            data = np.array(data).data
        with self._lock:
            self._waiting[offset] = data
            if self._hashing:
                return
            self._hashing = True
        if lent:
            self._background = _HASHERS.submit(self._hash_ready)
        else:
            self._hash_ready()

    def _hash_ready(self) -> None:
        while (piece := self._next()) is not None:
            self._sha256.update(piece)  # without the lock: this takes about 10 ms

    def _next(self) -> memoryview | None:
        with self._lock:
            piece = self._waiting.pop(self._at, None)
            self._at += len(piece or b"")
            self._hashing = piece is not None
            return piece

    def finish(self, file: File, nbytes: int) -> str:
        """Read the bytes not hashed yet and return the digest."""
        if self._background is not None:
            self._background.result()
        for _, piece in file.pieces(self._at, nbytes):
            self._sha256.update(piece.data)
        return self._sha256.hexdigest()


def disk_error(error: OSError, path: Path, kept: str = "finished shards") -> MachineError:
    """Return the error for a failed write, with the advice to run the command again."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write: {error.strerror}"
    fix = f"free some space and run the same command again: {kept} are kept" if full else _check(kept)
    return MachineError(what, where=str(path), fix=fix)


def resumable_error(error: OSError, folder: Path, kept: str = "finished shards") -> MachineError:
    """Return the error for a failed read or write in a run that can resume."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_error(error, folder, kept)
    what = f"cannot continue: {error.strerror or error}"
    return MachineError(what, where=str(error.filename or folder), fix=_check(kept))


def _check(kept: str) -> str:
    return f"check the disk and the folder, then run the same command again: {kept} are kept"


class Journal:
    """Append-only log with one synced JSON line per finished shard, used to resume a killed run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def lines(self) -> list[dict[str, Any]]:
        """Return all entries; lines truncated by a kill are skipped."""
        entries: list[dict[str, Any]] = []
        try:
            text = plain_bytes(self._path).decode(errors="replace")
        except FileNotFoundError:
            return entries
        except OSError as error:
            if error.errno == errno.EIO:  # a disk error: do not advise removing the folder
                raise resumable_error(error, self._path) from None
            what = f"the journal cannot be read: {error.strerror}"
            raise UsageError(what, where=str(self._path), fix="remove the folder and start again") from None
        for line in text.splitlines():
            try:
                entry = parsed(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                entries.append(cast("dict[str, Any]", entry))
        return entries

    def add(self, entry: dict[str, Any]) -> None:
        """Append and sync a line. A leading newline separates it from a truncated line before it."""
        data = f"\n{json.dumps(entry, sort_keys=True)}\n".encode()
        with self._lock, adding_filename(self._path), self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
