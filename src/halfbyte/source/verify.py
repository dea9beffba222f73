"""Source shards against the hashes that are known for them, each read once in a run's life.

A stamp remembers size, time and hash of a shard that was right, so that a run that goes on does not read it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import File
from halfbyte.numerics.chunks import usable_cores
from halfbyte.source.known_hashes import KnownHash


@dataclass(frozen=True, slots=True)
class Stamp:
    """A shard that was found right: as long as size and time are these, it need not be read again."""

    nbytes: int
    mtime_ns: int
    sha256: str


def verify(
    root: Path,
    known: Mapping[str, KnownHash],
    stamps: Mapping[str, Stamp],
    *,
    threads: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Stamp]:
    """Hash each shard that no stamp vouches for; return the stamps of all. The first wrong one is an error.

    `progress` gets the shard, the bytes read so far, and all the bytes that will be read.
    """
    found = {shard: made for shard, made in stamps.items() if _still(root / shard, made, known.get(shard))}
    pending = {shard: (root / shard).stat().st_size for shard in known if shard not in found}
    stop, done = threading.Event(), 0
    pool = ThreadPoolExecutor(threads or usable_cores())
    try:
        futures = {pool.submit(stamp, root / shard, stop): shard for shard in pending}
        for future in as_completed(futures):
            shard = futures[future]
            found[shard] = _require(known[shard], future.result(), root / shard)
            done += pending[shard]
            if progress is not None:
                progress(shard, done, sum(pending.values()))
    finally:
        stop.set()  # a wrong shard or Ctrl-C: the others end within a read
        pool.shutdown(cancel_futures=True)
    return found


def _still(path: Path, stamp: Stamp, known: KnownHash | None) -> bool:
    status = path.stat()
    same = (status.st_size, status.st_mtime_ns) == (stamp.nbytes, stamp.mtime_ns)
    return same and known is not None and known.sha256 == stamp.sha256


def stamp(path: Path, stop: threading.Event, read: Callable[[int], None] | None = None) -> Stamp:
    """Hash a file, past the page cache, until somebody says stop. One that shrinks meanwhile has another hash.

    `read` is told of the bytes of each piece.
    """
    digest, status, file = hashlib.sha256(), path.stat(), File(path)
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
    return Stamp(status.st_size, status.st_mtime_ns, digest.hexdigest())


def _require(known: KnownHash, stamp: Stamp, path: Path) -> Stamp:
    if stamp.sha256 == known.sha256:
        return stamp
    what = f"shard '{path.name}' is damaged: its SHA-256 is {stamp.sha256}, {known.source} says {known.sha256}"
    fix = f"{known.remedy}\nor, if the change is yours: --no-verify"
    raise CheckpointError(what, where=str(path), fix=fix)


def stamps_as_json(stamps: Mapping[str, Stamp]) -> dict[str, Any]:
    """Return stamps as a JSON file holds them."""
    return {shard: [stamp.nbytes, stamp.mtime_ns, stamp.sha256] for shard, stamp in sorted(stamps.items())}


def stamps_from_json(found: Any) -> dict[str, Stamp]:
    """Return the stamps that a JSON file holds; what is not one does not count."""
    return dict(_valid_stamps(cast("dict[str, Any]", found))) if isinstance(found, dict) else {}


def _valid_stamps(found: Mapping[str, Any]) -> Iterator[tuple[str, Stamp]]:
    for shard, entry in found.items():
        match entry:
            case [int(nbytes), int(mtime_ns), str(sha256)]:
                yield shard, Stamp(nbytes, mtime_ns, sha256)
            case _:
                continue
