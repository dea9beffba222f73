"""Bounded shard cache: prefetch shards before use and evict them after use.

A run declares which shards each of its steps reads, in order (`expect`), when a step has read them (`used`), and when
the step's output is final (`finished`). Between the last two a shard is kept if there is space, so that a killed run
can resume without fetching it again. Threads prefetch in step order while there is space. A read of a missing shard
blocks until the shard is fetched; it is fetched before all others, and shards needed later are evicted for it.
Correctness does not depend on the order: an unexpected shard is fetched when it is read, and an evicted shard again.

Reads cannot deadlock: the caller of `expect` ensures that one step's shards fit together, so the first unfinished step
can always continue. In case the order is wrong, any shard may be evicted after a minute without progress.

Ray tasks that fetch their own shards have a cache folder each, and hold a lock on it. The kernel releases a killed
task's lock. Its folder is never resumed: the next run on the machine removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from halfbyte.checkpoint.remote.download import PARTS, StoppedError, Tell, download, part_path
from halfbyte.checkpoint.remote.store import Checksum, Files, Kind
from halfbyte.errors import MachineError
from halfbyte.machine.direct_io import Bytes, File, in_pieces
from halfbyte.ui.units import size

FETCHERS = 4  # concurrent downloads
_STALL_S = 60.0
_POLL_S = 1.0
_NEVER = 1 << 60
_SPARE = 1 << 59  # already read, kept in case the run is killed

Step = tuple[str, int | None]  # an output shard and a layer in it
Steps = Sequence[tuple[Step, frozenset[str]]]

TASKS = ".tasks"  # contains one folder per fetching task


class ShardCache:
    """Thread-safe cache of one checkpoint's shards in a folder."""

    def __init__(self, files: Files, folder: Path, checksums: Mapping[str, Checksum], limit_nbytes: int) -> None:
        self.files, self.folder, self.limit_nbytes = files, folder, limit_nbytes
        self.checksums = checksums
        self.fetched_nbytes = 0
        self._tell: Tell = _ignore
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._steps: dict[Step, frozenset[str]] = {}
        self._spare: dict[Step, frozenset[str]] = {}  # steps that have read their shards but are not final
        self._cached: dict[str, File] = {}
        self._leftovers: dict[str, int] = {}  # complete or partial files of earlier runs, with their sizes
        self._fetching: set[str] = set()
        self._failed: dict[str, Exception] = {}
        self._awaited: list[str] = []  # shards that readers wait for
        self._reading: Counter[str] = Counter()
        self._read_at: dict[str, int] = {}  # read counter, for least-recently-used eviction
        self._reads, self._progress_at = 0, time.monotonic()
        self._starved = False  # whether a reader waits for a shard that does not fit

    # Called by the run.

    def expect(self, steps: Steps, tell: Tell) -> None:
        """Start prefetching the shards of all steps, in order."""
        with self._changed:
            self._steps, self._tell = dict(steps), tell
            self._start()
            self._changed.notify_all()

    def used(self, step: Step) -> None:
        """Mark a step's shards as read; they may be evicted when space is short."""
        with self._changed:
            if step in self._steps:
                self._spare[step] = self._steps.pop(step)
                self._note_progress()

    def finished(self, step: Step) -> None:
        """Mark a step as final and evict shards that no other step reads."""
        with self._changed:
            done = self._steps.pop(step, frozenset()) | self._spare.pop(step, frozenset())
            for shard in sorted(done):
                if self._next_use(shard) == _NEVER and not self._reading[shard]:
                    self._drop(shard)
            self._note_progress()

    def stop(self) -> None:
        """Wake and stop all fetchers and readers. Fetched data is kept for the next run."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def close(self, *, used_up: bool = False) -> None:
        """Stop and close every file; with `used_up`, delete them too."""
        self.stop()
        for thread in self._threads:
            thread.join(2 * _POLL_S)  # a thread blocked on the network ends with its next byte or the process
        with self._changed:
            for shard in [*self._cached, *(self._leftovers if used_up else ())]:
                if used_up:
                    self._drop(shard)
                else:
                    self._cached.pop(shard).close()
            if used_up:
                with suppress(OSError):
                    (self.folder / PARTS).rmdir()

    def known(self, shards: Sequence[str], *kinds: Kind) -> int:
        """Return how many of these shards have a checksum, of the given kinds or of any kind."""
        checksums = (self.checksums.get(shard) for shard in shards)
        return sum(checksum is not None and (not kinds or checksum.kind in kinds) for checksum in checksums)

    def left_nbytes(self) -> int:
        """Return the disk usage of shards left by earlier runs."""
        return sum(nbytes for _, nbytes in self._find_leftovers())

    def forget(self) -> None:
        """Delete shards left by earlier runs."""
        with self._changed:
            for shard, _ in list(self._find_leftovers()):
                self._drop(shard)

    # Called by readers.

    def open(self, shard: str) -> CachedShardFile:
        """Return a file object that fetches the shard on read."""
        return CachedShardFile(self, shard)

    @contextmanager
    def borrow(self, shard: str) -> Generator[File]:
        """Wait until a shard is cached and yield its file; it is not evicted while in use."""
        with self._changed:
            self._start()
            while shard not in self._cached:
                self._raise_if_unavailable(shard)
                if shard not in self._awaited:
                    self._awaited.append(shard)
                    self._changed.notify_all()
                self._changed.wait()
            with suppress(ValueError):
                self._awaited.remove(shard)
            self._reading[shard] += 1
            file = self._cached[shard]
        try:
            yield file
        finally:
            with self._changed:
                self._reading[shard] -= 1
                self._reads += 1
                self._read_at[shard] = self._reads
                self._progress_at = time.monotonic()
                if self._starved and not self._reading[shard]:
                    self._changed.notify_all()  # only then can an eviction help; notifying on every read would be slow

    def _raise_if_unavailable(self, shard: str) -> None:
        """Raise if the shard will never be available."""
        if self._stop.is_set():
            raise StoppedError
        if shard in self._failed:
            raise self._failed[shard]
        if self.files.entries[shard].nbytes > self.limit_nbytes:
            nbytes = self.files.entries[shard].nbytes
            raise MachineError(
                f"shard '{shard}' has {size(nbytes)}, more than the cache limit of {size(self.limit_nbytes)}",
                where=self.files.where,
                fix=f"pass --cache {-(-nbytes // 10**9)}GB or more",
            )

    # Run by the fetcher threads.

    def _start(self) -> None:
        if self._threads or self._stop.is_set():
            return
        self._leftovers = dict(self._find_leftovers())
        while self._leftovers and self._used_nbytes() > self.limit_nbytes:  # an earlier run had a larger limit
            self._drop(min(self._leftovers, key=self._eviction_order))
        for number in range(FETCHERS):
            thread = threading.Thread(target=self._fetch, name=f"fetch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _find_leftovers(self) -> Iterator[tuple[str, int]]:
        for shard in self.files.entries:
            paths = [path for path in (self.folder / shard, part_path(self.folder, shard)) if path.is_file()]
            if paths and shard.endswith(".safetensors"):
                yield shard, sum(path.stat().st_size for path in paths)

    def _fetch(self) -> None:
        while (shard := self._next_to_fetch()) is not None:
            try:
                checksum = self.checksums.get(shard)
                count = download(self.files, shard, self.folder, checksum, stop=self._stop, tell=self._tell)
                file = File(self.folder / shard)
            except StoppedError:
                return
            except Exception as error:
                with self._changed:
                    self._failed[shard] = error
                    self._fetching.remove(shard)
                    self._leftovers[shard] = sum(nbytes for name, nbytes in self._find_leftovers() if name == shard)
                    self._note_progress()
            else:
                with self._changed:
                    self.fetched_nbytes += count
                    self._cached[shard] = file
                    self._fetching.remove(shard)
                    self._note_progress()

    def _next_to_fetch(self) -> str | None:
        """Wait for the next shard that fits and return it; None after `stop`."""
        with self._changed:
            while not self._stop.is_set():
                shard = self._first_that_fits()
                if shard is not None:
                    self._fetching.add(shard)
                    self._leftovers.pop(shard, None)
                    return shard
                self._changed.wait(_POLL_S if self._awaited else None)
        return None

    def _first_that_fits(self) -> str | None:
        absent = [shard for shard in self._awaited if self._is_absent(shard)]
        for shard in sorted(absent, key=self._next_use):
            if self._evict_for(shard, self._evictable_from(shard)):
                return shard
        self._starved = bool(absent)
        if absent:
            return None  # reserve space for awaited shards
        for shards in self._steps.values():
            for shard in sorted(shards):
                if self._is_absent(shard):  # in order: a small later shard must not take the space
                    return shard if self._evict_for(shard, _SPARE) else None
        return None

    def _is_absent(self, shard: str) -> bool:
        return not (shard in self._cached or shard in self._fetching or shard in self._failed)

    def _evictable_from(self, shard: str) -> int:
        """Return the first step whose shards may be evicted for an awaited shard; earlier steps keep theirs."""
        idle = not self._fetching and time.monotonic() - self._progress_at > _STALL_S
        if idle or not self._steps:
            return 0
        use = self._next_use(shard)
        return 1 if use >= _SPARE else use + 1

    def _evict_for(self, shard: str, needed_from: int) -> bool:
        """Evict shards not needed before a step, latest use first, if that makes the shard fit."""
        nbytes = self.files.entries[shard].nbytes
        missing = nbytes - (self.limit_nbytes - self._used_nbytes(excluded=shard))
        victims: list[str] = []
        for other in sorted({*self._cached, *self._leftovers} - {shard}, key=self._eviction_order):
            if missing <= 0:
                break
            evictable = not self._reading[other] and other not in self._awaited
            if evictable and self._next_use(other) >= needed_from:
                victims.append(other)
                missing -= self._nbytes_on_disk(other)
        if missing > 0:
            return False
        for other in victims:
            self._drop(other)
        return True

    def _eviction_order(self, shard: str) -> tuple[int, int]:
        return -self._next_use(shard), self._read_at.get(shard, 0)

    def _next_use(self, shard: str) -> int:
        for number, shards in enumerate(self._steps.values()):
            if shard in shards:
                return number
        return _SPARE if any(shard in shards for shards in self._spare.values()) else _NEVER

    def _nbytes_on_disk(self, shard: str) -> int:
        return self.files.entries[shard].nbytes if shard in self._cached else self._leftovers.get(shard, 0)

    def _used_nbytes(self, excluded: str = "") -> int:
        """Return the bytes of all shards, counting those being fetched in full and leaving out `excluded`."""
        fetching = sum(self.files.entries[shard].nbytes for shard in self._fetching)
        return fetching + sum(self._nbytes_on_disk(shard) for shard in {*self._cached, *self._leftovers} - {excluded})

    def _drop(self, shard: str) -> None:
        file = self._cached.pop(shard, None)
        if file is not None:
            file.close()  # an open file would keep its disk space
        self._leftovers.pop(shard, None)
        (self.folder / shard).unlink(missing_ok=True)
        part_path(self.folder, shard).unlink(missing_ok=True)

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()
        self._changed.notify_all()


class CachedShardFile:
    """A shard that may be evicted and fetched again between reads."""

    def __init__(self, cache: ShardCache, shard: str) -> None:
        self._cache, self._shard = cache, shard

    def read(self, begin: int, nbytes: int) -> Bytes:
        """Return a byte range."""
        with self._cache.borrow(self._shard) as file:
            return file.read(begin, nbytes)

    def read_into(self, begin: int, memory: Bytes) -> None:
        """Read into an array."""
        with self._cache.borrow(self._shard) as file:
            file.read_into(begin, memory)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Yield a long byte range in pieces with their offsets, each in its own array."""
        return in_pieces(self.read, begin, end)

    def close(self) -> None:
        """Do nothing: the cache closes the file on eviction."""


def _ignore(_: str) -> None:
    pass


@contextmanager
def locked_tasks(root: Path) -> Generator[None]:
    """Remove the folders of dead tasks; other processes cannot add or remove task folders in this context."""
    (root / TASKS).mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / TASKS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for folder in (root / TASKS).iterdir():
            _remove_if_dead(folder)
        yield
    finally:
        os.close(descriptor)


def sweep(root: Path) -> None:
    """Remove the folders of dead tasks, if there are any."""
    if (root / TASKS).is_dir():
        with suppress(OSError), locked_tasks(root):  # the next run tries again
            pass


def _remove_if_dead(folder: Path) -> None:
    try:
        descriptor = os.open(folder / PARTS, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # killed before it took the lock, or during removal
        return shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return None  # state unknown: owned by another user, or too many open files
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        pass  # still running
    finally:
        os.close(descriptor)
