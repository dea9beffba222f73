"""SHA-256 of many files, each read once: threads, bounded memory, and stamps for what was read before.

A stamp has the size and the time of change of a file that was hashed. As long as both are the same, it is not read
again. The audit is a witness too: it hashed every shard against the journal and noted both.
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
from typing import Any, cast

from halfbyte.audit.run import RESULT as AUDIT
from halfbyte.audit.seen import SEEN
from halfbyte.errors import CheckpointError
from halfbyte.folders import FOLDER
from halfbyte.json_file import json_object
from halfbyte.known_source import VERIFIED
from halfbyte.numerics.chunks import usable_cores
from halfbyte.pipeline import JOURNAL
from halfbyte.publish.contents import HASHED
from halfbyte.source.verify import Stamp, stamp, stamps_as_json, stamps_from_json
from halfbyte.write import Journal, write_whole

COMPUTED = "computed"
_SAVE_EVERY_S = 10.0
_TICK_S = 0.5  # how often somebody who watches hears of large files

Known = Mapping[str, tuple[Stamp, str]]  # file -> stamp, and who made it


@dataclass(frozen=True, slots=True)
class Hash:
    """What a file is, and who says so."""

    nbytes: int
    sha256: str
    origin: str


@dataclass(frozen=True, slots=True)
class Step:
    """Where hashing is, twice a second, and with `finished` where a file has just ended."""

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
    """Return the hash of each file; those with a stamp that still fits are not read. `keep` gets each new stamp."""
    found: dict[str, Hash] = {}
    pending: dict[str, int] = {}
    for name, path in files.items():
        stamped, origin = (known or {}).get(name, (None, ""))
        status = path.stat()
        if stamped is not None and (status.st_size, status.st_mtime_ns) == (stamped.nbytes, stamped.mtime_ns):
            found[name] = Hash(stamped.nbytes, stamped.sha256, origin)
        else:
            pending[name] = status.st_size
    for name, made in _hashed({name: files[name] for name in pending}, sum(pending.values()), watch, threads):
        found[name] = Hash(made.nbytes, made.sha256, COMPUTED)
        if keep is not None:
            keep(name, made)
    return {name: found[name] for name in files}


def _hashed(
    files: Mapping[str, Path], all_nbytes: int, watch: Watch | None, threads: int | None
) -> Iterator[tuple[str, Stamp]]:
    begin, done, lock, stop = time.monotonic(), 0, threading.Lock(), threading.Event()

    def read(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes

    def step(finished: str = "") -> None:
        if watch is not None:
            watch(Step(done, all_nbytes, time.monotonic() - begin, finished))

    pool = ThreadPoolExecutor(threads or usable_cores())
    try:
        futures = {pool.submit(stamp, path, stop, read): name for name, path in files.items()}
        pending = set(futures)
        while pending:
            ended, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_COMPLETED)
            step()
            for future in ended:
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
    """The stamps of an output folder, of its own files and of its source's, kept in halfbyte/hashed.json."""

    def __init__(self, out: Path) -> None:
        self._out, self._path = out, out / FOLDER / HASHED
        held = json_object(self._path)
        self._made = {part: stamps_from_json(held.get(part)) for part in ("outputs", "source")}
        self._saved = time.monotonic()

    def outputs(self) -> Known:
        """Return what is known of the folder's files: by an earlier hashing, or by the audit."""
        return {**_audited(self._out), **{n: (s, "an earlier hashing") for n, s in self._made["outputs"].items()}}

    def source(self) -> Known:
        """Return what is known of the source's shards: `quantize` compared them with their known hashes."""
        verified = stamps_from_json(json_object(self._out / FOLDER / VERIFIED))
        earlier = {name: (made, "an earlier hashing") for name, made in self._made["source"].items()}
        return {**earlier, **{name: (made, "quantize, which verified them") for name, made in verified.items()}}

    def keep(self, part: str) -> Callable[[str, Stamp], None]:
        """Return what remembers a new stamp; it is on the disk within seconds, and at the end by `save`."""

        def add(name: str, made: Stamp) -> None:
            self._made[part][name] = made
            if time.monotonic() - self._saved > _SAVE_EVERY_S:
                self.save()

        return add

    def save(self) -> None:
        """Write the stamps. A folder that cannot be written to is hashed again next time."""
        self._saved = time.monotonic()
        text = json.dumps({part: stamps_as_json(made) for part, made in self._made.items()}, indent=1)
        with contextlib.suppress(OSError):
            write_whole(self._path, text.encode())


def _audited(out: Path) -> dict[str, tuple[Stamp, str]]:
    """Return the journal's hashes of shards that the audit found right, with the sizes and times that it saw."""
    audit = json_object(out / FOLDER / AUDIT)
    if not any((finding.get("check"), finding.get("level")) == ("bytes", "good") for finding in _objects(audit)):
        return {}
    journal = {line.get("shard"): line.get("sha256") for line in Journal(out / FOLDER / JOURNAL).lines()}
    seen: Any = audit.get(SEEN)
    found: dict[str, tuple[Stamp, str]] = {}
    for name, entry in cast("dict[str, Any]", seen).items() if isinstance(seen, dict) else ():
        sha256 = journal.get(name)
        match entry:
            case [int(nbytes), int(mtime_ns)] if isinstance(sha256, str):
                found[name] = Stamp(nbytes, mtime_ns, sha256), "the audit, which hashed them"
            case _:
                continue
    return found


def _objects(audit: Mapping[str, Any]) -> list[dict[str, Any]]:
    findings: Any = audit.get("findings")
    rows = cast("list[Any]", findings) if isinstance(findings, list) else []
    return [row for row in rows if isinstance(row, dict)]
