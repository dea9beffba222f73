"""One shard to the disk. It grows under another name, is hashed as it comes, and gets its name when it is right.

What an earlier run left is hashed from the disk and not fetched again. Without a checksum nobody can tell whether a
power cut has torn it, so then it is.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import PIECE_NBYTES
from halfbyte.source.remote.files import Checksum, Files
from halfbyte.source.remote.patience import StoppedError, Tell, patiently
from halfbyte.terminal.units import size
from halfbyte.write import disk_error, sync_folder

PARTS = ".parts"  # a folder beside the shards
_SYNC_NBYTES = 1 << 28


def part_path(folder: Path, shard: str) -> Path:
    """Return where a shard grows."""
    return folder / PARTS / shard


def download(
    files: Files, shard: str, folder: Path, checksum: Checksum | None, *, stop: threading.Event, tell: Tell
) -> int:
    """Bring a shard into a folder, whole and right, or raise; return how many bytes were fetched."""
    part, target, entry = part_path(folder, shard), folder / shard, files.entries[shard]
    part.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    begin, fetched = time.monotonic(), 0
    try:
        if target.exists():  # of an earlier run: as good as a part that has arrived whole
            target.replace(part)
        if checksum is None or (part.exists() and part.stat().st_size > entry.nbytes):
            part.unlink(missing_ok=True)
        for again in (True, False):
            digest, count = _bring(files, shard, part, checksum, stop, tell)
            fetched += count
            if checksum is None or digest == checksum.value:
                break
            part.unlink()
            if not again:
                raise _damaged(files, shard, checksum, digest)
            tell(f"{shard} came with another {checksum.name} than {checksum.source} says; fetching it again")
        files.refuse_changed(shard)
        part.replace(target)
        sync_folder(target.parent)
    except OSError as error:
        raise disk_error(error, folder) from None
    seconds = max(time.monotonic() - begin, 1e-9)
    proof = f"{checksum.name} right" if checksum else "size right, no checksum known"
    came = f"{size(fetched)} at {size(int(fetched / seconds))}/s" if fetched else "was here already"
    tell(f"fetched {shard}: {came}, {proof}")
    return fetched


def _bring(
    files: Files, shard: str, part: Path, checksum: Checksum | None, stop: threading.Event, tell: Tell
) -> tuple[str, int]:
    """Let a part grow to its full size; return the digest of all of it, and how many bytes came."""
    nbytes = files.entries[shard].nbytes
    digest = checksum.begin(nbytes) if checksum is not None else None
    with part.open("ab", buffering=0) as file:
        at = _hash_what_is_here(part, digest, stop)
        begin = synced = at
        for chunk in patiently(files, shard, at, nbytes, stop=stop, tell=tell):
            _write_all(file, chunk)
            at += len(chunk)
            if digest is not None:
                digest.update(chunk)
            if at - synced >= _SYNC_NBYTES:
                _to_disk(file.fileno())
                synced = at
        _to_disk(file.fileno())
    return digest.hexdigest() if digest is not None else "", at - begin


def _hash_what_is_here(part: Path, digest: Any, stop: threading.Event) -> int:
    at = 0
    with part.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_NBYTES):
            at += len(piece)
            digest.update(piece)  # without a checksum there is nothing here
            if stop.is_set():
                raise StoppedError
    return at


def _write_all(file: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _to_disk(file: int) -> None:
    """Bring a file to the disk, and out of the page cache: it is read once, past it."""
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def _damaged(files: Files, shard: str, checksum: Checksum, found: str) -> CheckpointError:
    what = f"shard '{shard}' came damaged twice: its {checksum.name} is {found}, {checksum.source} says"
    fix = "a proxy on the way may change it, or the file is wrong where it lies; to use it nevertheless: --no-verify"
    if checksum.kind == "md5":
        fix = (
            "if the bucket encrypts with keys of KMS, its ETags are no MD5s: put a SHA256SUMS beside the shards\n" + fix
        )
    return CheckpointError(f"{what} {checksum.value}", where=files.where, fix=fix)
