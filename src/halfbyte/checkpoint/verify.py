"""Verify source shards against their known SHA-256, reading each shard at most once per run.

A stamp stores a file's hash with its size, times and inode. A file whose status still matches its stamp is not read
again. The stamp includes ctime because `os.utime` can restore the mtime of a file that was changed in place, but not
its ctime.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.expected_hashes import KnownHash
from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import File
from halfbyte.machine.resources import usable_cores

_SETTLED_NS = 50 * 10**6  # longer than the timestamp granularity of any file system


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's hash, and its status when it was hashed."""

    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str

    @staticmethod
    def of(status: os.stat_result, sha256: str) -> Stamp:
        """Return the stamp of a file with this status and hash."""
        return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, sha256)

    def fits(self, status: os.stat_result) -> bool:
        """Return whether the file is unchanged since it was hashed."""
        return self == Stamp.of(status, self.sha256)


def verify(
    root: Path,
    known: Mapping[str, KnownHash],
    stamps: Mapping[str, Stamp],
    *,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Stamp]:
    """Hash each shard without a valid stamp and return the stamps of all; raise on the first mismatch.

    `progress` receives the shard, the bytes read so far, and the total bytes to read.
    """
    verified = {shard: old for shard, old in stamps.items() if _is_current(root / shard, old, known.get(shard))}
    pending = {shard: (root / shard).stat().st_size for shard in known if shard not in verified}
    stop, done = threading.Event(), 0
    pool = ThreadPoolExecutor(threads or usable_cores())
    try:
        futures = {pool.submit(stamp, root / shard, stop): shard for shard in pending}
        for future in as_completed(futures):
            shard = futures[future]
            verified[shard] = _require(known[shard], future.result(), root / shard)
            done += pending[shard]
            if progress is not None:
                progress(shard, done, sum(pending.values()))
    finally:
        stop.set()  # after a mismatch or Ctrl-C, the other threads stop at their next read
        pool.shutdown(cancel_futures=True)
    return verified


def _is_current(path: Path, stamp: Stamp, known: KnownHash | None) -> bool:
    return stamp.fits(path.stat()) and known is not None and known.sha256 == stamp.sha256


def stamp(path: Path, stop: threading.Event, read: Callable[[int], None] | None = None) -> Stamp:
    """Hash a file, bypassing the page cache, until `stop` is set. A file that shrinks during the read fails to match.

    `read` is called with the size of each piece.
    """
    digest, status, file = hashlib.sha256(), _settled(path), File(path)
    try:
        with contextlib.suppress(EOFError):
            for _, piece in file.pieces(0, status.st_size):
                if stop.is_set():
                    break
                digest.update(piece.data)
                if read is not None:
                    read(len(piece))
    finally:
        file.close()
    return Stamp.of(status, digest.hexdigest())


def _settled(path: Path) -> os.stat_result:
    """Return a file's status once any later change is certain to get a different timestamp."""
    status = path.stat()
    age = time.time_ns() - status.st_ctime_ns
    if not -_SETTLED_NS < age < _SETTLED_NS:
        return status
    time.sleep(_SETTLED_NS / 1e9)
    return path.stat()


def _require(known: KnownHash, stamp: Stamp, path: Path) -> Stamp:
    if stamp.sha256 == known.sha256:
        return stamp
    what = f"shard '{path.name}' is damaged: its SHA-256 is {stamp.sha256}, but {known.source} gives {known.sha256}"
    fix = f"{known.remedy}\nor, if you changed it yourself: --no-verify"
    raise CheckpointError(what, where=str(path), fix=fix)


def stamps_as_json(stamps: Mapping[str, Stamp]) -> dict[str, Any]:
    """Return stamps as JSON data."""
    return {shard: list(astuple(stamp)) for shard, stamp in sorted(stamps.items())}


def stamps_from_json(data: Any) -> dict[str, Stamp]:
    """Return the stamps in JSON data; invalid entries are skipped."""
    return dict(_valid_stamps(cast("dict[str, Any]", data))) if isinstance(data, dict) else {}


def _valid_stamps(entries: Mapping[str, Any]) -> Iterator[tuple[str, Stamp]]:
    for shard, entry in entries.items():
        match entry:
            case [int(nbytes), int(mtime_ns), int(ctime_ns), int(inode), str(sha256)]:
                yield shard, Stamp(nbytes, mtime_ns, ctime_ns, inode, sha256)
            case _:
                continue
