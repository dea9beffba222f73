"""SHA-256 of files: hash many in parallel, skip unchanged ones, verify source shards against expected hashes.

A stamp stores a file's hash with its size, times and inode. A file whose status still matches its stamp is not read
again. The stamp includes ctime because `os.utime` can restore the mtime of a file that was changed in place, but not
its ctime. The stamps of an output folder are in halfbyte/hashed.json: `quantize` hashes shards while it writes them and
fills it, so later commands need not read them. A copied folder has new inodes and is hashed once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, cast

from halfbyte.checkpoint.atomic_write import OrderedDigest, write_whole
from halfbyte.checkpoint.identity import KnownHash
from halfbyte.checkpoint.output_folder import FOLDER, HASHED, VERIFIED
from halfbyte.checkpoint.untrusted_files import json_object
from halfbyte.errors import CheckpointError
from halfbyte.machine.direct_io import File
from halfbyte.machine.resources import usable_cores

_SETTLED_NS = 50 * 10**6  # longer than the timestamp granularity of any file system
COMPUTED = "computed"
_SAVE_EVERY_S = 10.0
_TICK_S = 0.5  # interval between progress reports


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


@dataclass(frozen=True, slots=True)
class Hash:
    """A file's size and SHA-256, and where the hash comes from."""

    nbytes: int
    sha256: str
    origin: str


@dataclass(frozen=True, slots=True)
class HashProgress:
    """Hashing progress, reported every half second and, with `finished` set, after each file."""

    done_nbytes: int
    all_nbytes: int
    seconds: float
    finished: str = ""


Known = Mapping[str, tuple[Stamp, str]]  # file -> stamp and its origin
Watch = Callable[[HashProgress], None]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, bypassing the page cache."""
    file = File(path)
    try:
        return OrderedDigest().finish(file, path.stat().st_size)
    finally:
        file.close()


def hash_files(
    files: Mapping[str, Path],
    known: Known | None = None,
    *,
    watch: Watch | None = None,
    keep: Callable[[str, Stamp], None] | None = None,
    threads: int | None = None,
) -> dict[str, Hash]:
    """Return the hash of each file; files with a valid stamp are not read. `keep` receives each new stamp."""
    hashes: dict[str, Hash] = {}
    pending: dict[str, int] = {}
    for name, path in files.items():
        stamped, origin = (known or {}).get(name, (None, ""))
        status = path.stat()
        if stamped is not None and stamped.fits(status):
            hashes[name] = Hash(stamped.nbytes, stamped.sha256, origin)
        else:
            pending[name] = status.st_size
    for name, new in _hashed({name: files[name] for name in pending}, sum(pending.values()), watch, threads):
        hashes[name] = Hash(new.nbytes, new.sha256, COMPUTED)
        if keep is not None:
            keep(name, new)
    return {name: hashes[name] for name in files}


def _hashed(
    files: Mapping[str, Path], all_nbytes: int, watch: Watch | None, threads: int | None
) -> Iterator[tuple[str, Stamp]]:
    start, done, lock, stop = time.monotonic(), 0, threading.Lock(), threading.Event()

    def read(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes

    def step(finished: str = "") -> None:
        if watch is not None:
            watch(HashProgress(done, all_nbytes, time.monotonic() - start, finished))

    pool = ThreadPoolExecutor(threads or usable_cores())
    try:
        futures = {pool.submit(stamp, path, stop, read): name for name, path in files.items()}
        pending = set(futures)
        while pending:
            done_futures, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            step()
            for future in done_futures:
                name = futures[future]
                try:
                    yield name, future.result()
                except OSError as error:
                    what = f"'{name}' cannot be read: {error.strerror}"
                    raise CheckpointError(what, where=name, fix="check the disk and the permissions") from None
                step(name)
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


class Stamps:
    """The stamps of an output folder's files and of its source's shards, stored in halfbyte/hashed.json."""

    def __init__(self, out: Path) -> None:
        self._out, self._path = out, out / FOLDER / HASHED
        saved = json_object(self._path)
        self._stamps = {part: stamps_from_json(saved.get(part)) for part in ("outputs", "source")}
        self._saved = time.monotonic()

    def outputs(self) -> Known:
        """Return the stamps of the folder's files."""
        return {name: (known, "an earlier hashing") for name, known in self._stamps["outputs"].items()}

    def source(self) -> Known:
        """Return the stamps of the source's shards, including those that `quantize` verified."""
        verified = stamps_from_json(json_object(self._out / FOLDER / VERIFIED))
        earlier = {name: (known, "an earlier hashing") for name, known in self._stamps["source"].items()}
        return {**earlier, **{name: (known, "quantize, which verified them") for name, known in verified.items()}}

    def add(self, name: str, known: Stamp) -> None:
        """Record the stamp of an output file; `save` writes it to disk."""
        self._stamps["outputs"][name] = known

    def keep(self, part: str) -> Callable[[str, Stamp], None]:
        """Return a callback that records a new stamp and saves all stamps every few seconds."""

        def add(name: str, known: Stamp) -> None:
            self._stamps[part][name] = known
            if time.monotonic() - self._saved > _SAVE_EVERY_S:
                self.save()

        return add

    def save(self) -> None:
        """Write the stamps; write errors are ignored, and the files are hashed again next time."""
        self._saved = time.monotonic()
        text = json.dumps({part: stamps_as_json(known) for part, known in self._stamps.items()}, indent=1)
        with contextlib.suppress(OSError):
            write_whole(self._path, text.encode())
