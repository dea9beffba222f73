"""Hash many files in parallel with SHA-256, using bounded memory and a cache of earlier hashes.

The cache, halfbyte/hashed.json, has a stamp for each file (see checkpoint/verify.py): a file is read again only if its
status has changed. `quantize` hashes shards while it writes them and fills the cache, so later commands need not read
them. A copied folder has new inodes and is hashed once.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from halfbyte.checkpoint.atomic_write import write_whole
from halfbyte.checkpoint.json_file import json_object
from halfbyte.checkpoint.output_folder import FOLDER, HASHED, VERIFIED
from halfbyte.checkpoint.verify import Stamp, stamp, stamps_as_json, stamps_from_json
from halfbyte.errors import CheckpointError
from halfbyte.machine.resources import usable_cores

COMPUTED = "computed"
_SAVE_EVERY_S = 10.0
_TICK_S = 0.5  # interval between progress reports

Known = Mapping[str, tuple[Stamp, str]]  # file -> stamp and its origin


@dataclass(frozen=True, slots=True)
class Hash:
    """A file's size and SHA-256, and where the hash comes from."""

    nbytes: int
    sha256: str
    origin: str


@dataclass(frozen=True, slots=True)
class Step:
    """Hashing progress, reported every half second and, with `finished` set, after each file."""

    done_nbytes: int
    all_nbytes: int
    seconds: float
    finished: str = ""


Watch = Callable[[Step], None]


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
            watch(Step(done, all_nbytes, time.monotonic() - start, finished))

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
