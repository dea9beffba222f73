"""Download with retries: resume reads after a lost connection, a server error or a rate limit; fetch and verify shards.

Retries use exponential backoff. Progress of one megabyte resets the attempt count, so that a poor connection succeeds
slowly and a dead one fails within minutes.

A shard is written under a temporary name, hashed on the fly, and renamed once verified. A partial download of an
earlier run is hashed from disk and resumed. Without a checksum, damage from a power failure would go undetected, so the
shard is downloaded again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import disk_error, sync_folder
from halfbyte.checkpoint.remote.store import Checksum, Files
from halfbyte.errors import CheckpointError, MachineError
from halfbyte.machine.direct_io import PIECE_NBYTES
from halfbyte.machine.retry import Backoff
from halfbyte.ui.units import size

# Attempts without a megabyte of progress. The Hub's rate limits use windows of five minutes.
BACKOFF = Backoff(attempts=8, first_wait_s=1.0, longest_wait_s=300.0)
_ENOUGH_NBYTES = 1 << 20

Tell = Callable[[str], None]

PARTS = ".parts"  # subfolder for partial downloads
_SYNC_NBYTES = 1 << 28


class TransientError(Exception):
    """An error that a retry may resolve."""

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.what, self.wait_s = what, wait_s


class StoppedError(Exception):
    """The read was stopped because its result is no longer needed."""


def read_with_retries(
    files: Files, name: str, begin: int, end: int, *, stop: threading.Event, tell: Tell | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a range, resuming after transient errors."""
    at, tries, progress_at = begin, 0, begin
    while at < end:
        try:
            for chunk in files.stream(name, at, end):
                at += len(chunk)
                yield chunk
                if stop.is_set():
                    raise StoppedError
            if at < end:
                raise TransientError("the response ended early")
        except TransientError as error:
            tries, progress_at = (tries + 1, progress_at) if at - progress_at < _ENOUGH_NBYTES else (1, at)
            if tries >= BACKOFF.attempts:
                what = f"'{name}' cannot be read: {error.what} ({tries} times, at {size(at)} of {size(end)})"
                fix = "check the network, then run the same command again: it resumes"
                raise MachineError(what, where=files.where, fix=fix) from None
            seconds = BACKOFF.wait_s(tries, error.wait_s)
            if tell is not None:
                tell(f"{error.what}; retrying in {seconds:.0f} s ({name}, {size(at)} of {size(end)})")
            if stop.wait(seconds):
                raise StoppedError from None


def read_whole(files: Files, name: str, begin: int, end: int, stop: threading.Event | None = None) -> bytes:
    """Return a byte range that fits in memory."""
    return b"".join(read_with_retries(files, name, begin, end, stop=stop or threading.Event()))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, if it has one."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def no_answer(error: BaseException) -> bool:
    """Return whether there was no response: connection error, timeout, or transport error of any httpx package."""
    bases = {base.__name__ for base in type(error).__mro__}
    return "TransportError" in bases or isinstance(error, (ConnectionError, TimeoutError))


def retry_after(error: BaseException) -> float | None:
    """Return the server's Retry-After (a number or a date) in seconds, if present."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    value = headers.get("retry-after")
    try:
        return max(float(value), 0.0)
    except (TypeError, ValueError):
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError):
        return None


def part_path(folder: Path, shard: str) -> Path:
    """Return the path of a shard's partial download."""
    return folder / PARTS / shard


def download(
    files: Files, shard: str, folder: Path, checksum: Checksum | None, *, stop: threading.Event, tell: Tell
) -> int:
    """Download and verify a shard; return the number of bytes fetched."""
    part, target, entry = part_path(folder, shard), folder / shard, files.entries[shard]
    part.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    start, fetched = time.monotonic(), 0
    try:
        if target.exists():  # from an earlier run: verify it like a complete partial download
            target.replace(part)
        if checksum is None or (part.exists() and part.stat().st_size > entry.nbytes):
            part.unlink(missing_ok=True)
        for retry in (True, False):
            digest, count = _complete_part(files, shard, part, checksum, stop, tell)
            fetched += count
            if checksum is None or digest == checksum.value:
                break
            part.unlink()
            if not retry:
                raise _damaged(files, shard, checksum, digest)
            tell(f"{shard}: {checksum.name} does not match {checksum.source}; fetching it again")
        files.refuse_changed(shard)
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise disk_error(error, folder) from None
    seconds = max(time.monotonic() - start, 1e-9)
    proof = f"{checksum.name} verified" if checksum else "size verified, no checksum available"
    summary = f"{size(fetched)} at {size(int(fetched / seconds))}/s" if fetched else "already cached"
    tell(f"fetched {shard}: {summary}, {proof}")
    return fetched


def _complete_part(
    files: Files, shard: str, part: Path, checksum: Checksum | None, stop: threading.Event, tell: Tell
) -> tuple[str, int]:
    """Download the rest of a partial file; return the digest of the whole file and the number of bytes fetched."""
    nbytes = files.entries[shard].nbytes
    digest = checksum.new_digest(nbytes) if checksum is not None else None
    with part.open("ab", buffering=0) as file:
        at = _hash_existing(part, digest, stop)
        start = synced = at
        for chunk in read_with_retries(files, shard, at, nbytes, stop=stop, tell=tell):
            _write_all(file, chunk)
            at += len(chunk)
            if digest is not None:
                digest.update(chunk)
            if at - synced >= _SYNC_NBYTES:
                _sync(file.fileno())
                synced = at
        _sync(file.fileno())
    return digest.hexdigest() if digest is not None else "", at - start


def _hash_existing(part: Path, digest: Any, stop: threading.Event) -> int:
    at = 0
    with part.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_NBYTES):
            at += len(piece)
            digest.update(piece)  # without a checksum, the file is empty
            if stop.is_set():
                raise StoppedError
    return at


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync(file: int) -> None:
    """Sync a file and drop it from the page cache; it is read once, with direct I/O."""
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _damaged(files: Files, shard: str, checksum: Checksum, digest: str) -> CheckpointError:
    what = f"shard '{shard}' was damaged in two downloads: its {checksum.name} is {digest}, but {checksum.source} gives"
    fix = "check for a proxy that modifies files, or a damaged file at the source; to use it anyway: --no-verify"
    if checksum.kind == "md5":
        fix = "if the bucket is encrypted with KMS, its ETags are not MD5s: put a SHA256SUMS next to the shards\n" + fix
    return CheckpointError(f"{what} {checksum.value}", where=files.where, fix=fix)
