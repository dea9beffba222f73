"""Stage 5: whole files or none. A shard grows under a temporary name and is renamed when every byte is on the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from halfbyte.errors import MachineError

PART = ".part"
_HASH_NBYTES = 1 << 22


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that readers see all of it or none of it, even after a power cut."""
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class ShardFile:
    """One output shard while it grows; threads write tensors at their final offsets in any order."""

    def __init__(self, path: Path, head: bytes, nbytes: int) -> None:
        self.path = path
        self._part = path.with_name(path.name + PART)
        self._nbytes = nbytes
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(self._file, 0, nbytes)  # a full disk says so now, not after an hour
        except OSError as error:
            self.abandon()
            raise disk_error(error, path) from None
        self.write(memoryview(head), 0)

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes at their place."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], offset + done)
        except OSError as error:
            raise disk_error(error, self.path) from None

    def finish(self) -> str:
        """Bring every byte to the disk, give the file its name, and return its SHA-256."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise disk_error(error, self.path) from None
        digest = _sha256(self._file, self._nbytes)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._file)
        self._part.rename(self.path)
        sync_folder(self.path.parent)
        return digest

    def abandon(self) -> None:
        """Leave nothing behind."""
        os.close(self._file)
        self._part.unlink(missing_ok=True)


def _sha256(file: int, nbytes: int) -> str:
    digest, buffer, at = hashlib.sha256(), bytearray(_HASH_NBYTES), 0
    while at < nbytes:
        count = os.preadv(file, [buffer], at)
        digest.update(memoryview(buffer)[:count])
        at += count
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read once and not kept in memory."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        digest = _sha256(file, os.fstat(file).st_size)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return digest
    finally:
        os.close(file)


def disk_error(error: OSError, path: Path) -> MachineError:
    """Say what the disk said, and that running again goes on."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "the disk is full" if full else f"cannot write: {error.strerror}"
    fix = "free some space and run the same command again: finished shards are kept" if full else "check the folder"
    return MachineError(what, where=str(path), fix=fix)


class Journal:
    """One JSON line for each finished shard, appended and synced: the memory of a run that was killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def lines(self) -> list[dict[str, Any]]:
        """Return what was written; a line that a kill tore does not count."""
        found: list[dict[str, Any]] = []
        text = self._path.read_text(encoding="utf-8", errors="replace") if self._path.exists() else ""
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def add(self, entry: dict[str, Any]) -> None:
        """Append a line and bring it to the disk. A newline goes first, so that a torn line before it stays alone."""
        data = f"\n{json.dumps(entry, sort_keys=True)}\n".encode()
        with self._lock, self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
