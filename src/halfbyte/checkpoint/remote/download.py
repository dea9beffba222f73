"""Download one shard: written under a temporary name, hashed on the fly, renamed once verified.

A partial download of an earlier run is hashed from disk and resumed. Without a checksum, damage from a power failure
would go undetected, so the shard is downloaded again.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from halfbyte.checkpoint.atomic_write import disk_error, sync_folder
from halfbyte.checkpoint.remote.retry import StoppedError, Tell, read_with_retries
from halfbyte.checkpoint.remote.store import Checksum, Files
from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import PIECE_NBYTES
from halfbyte.ui.units import size

PARTS = ".parts"  # subfolder for partial downloads
_SYNC_NBYTES = 1 << 28


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
