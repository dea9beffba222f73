"""The shards that are here, never more bytes of them than allowed: fetched ahead of use, and gone when they were used.

A run says which shards each of its steps reads, in its order (`expect`), when a step has read them (`used`), and when
what it made of them is final (`finished`). Between the two a shard stays if there is room, for the run after a kill.
Threads fetch in that order as far as there is room. Who reads a shard that is not here waits for it; then it comes
before all others, and what is needed later makes room. Nothing depends on the order being right: a shard that nobody
expected is fetched when it is read, and one that had to go comes again.

Nobody waits for ever: a step's shards fit together (whoever expects them has seen to that), so the first step that is
not finished can always go on. Should the order be wrong, a minute in which nothing comes or is read lets any shard go.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from halfbyte.errors import MachineError
from halfbyte.machine.direct_io import BLOCK, PIECE_NBYTES, Bytes, File
from halfbyte.source.remote.download import PARTS, download, part_path
from halfbyte.source.remote.files import Checksum, Files, Kind
from halfbyte.source.remote.patience import StoppedError, Tell
from halfbyte.terminal.units import size

FETCHERS = 4  # shards that come at once, a connection each
_PATIENCE_S = 60.0
_LOOK_S = 1.0
_NEVER = 1 << 60

_SPARE = 1 << 59  # read, and kept for the run after a kill

Step = tuple[str, int | None]  # a shard of the output, and a layer of it
Steps = Sequence[tuple[Step, frozenset[str]]]


class Shelf:
    """The shards of one checkpoint, in a folder; any thread may read."""

    def __init__(self, files: Files, folder: Path, checksums: Mapping[str, Checksum], limit_nbytes: int) -> None:
        self.files, self.folder, self.limit_nbytes = files, folder, limit_nbytes
        self.checksums = checksums
        self.fetched_nbytes = 0
        self._tell: Tell = _nobody
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._steps: dict[Step, frozenset[str]] = {}
        self._spare: dict[Step, frozenset[str]] = {}  # of steps that have read them and are not final
        self._here: dict[str, File] = {}
        self._left: dict[str, int] = {}  # what earlier runs left, whole or in part, and its bytes
        self._coming: set[str] = set()
        self._failed: dict[str, Exception] = {}
        self._wanted: list[str] = []  # by those who wait
        self._reading: Counter[str] = Counter()
        self._read_at: dict[str, int] = {}  # a count of reads: who was read longest ago goes first
        self._reads, self._moved_at = 0, time.monotonic()
        self._short = False  # whether somebody waits for a shard that has no room

    # What a run says.

    def expect(self, steps: Steps, tell: Tell) -> None:
        """Begin to fetch what the steps of a run read, in their order."""
        with self._changed:
            self._steps, self._tell = dict(steps), tell
            self._begin()
            self._changed.notify_all()

    def used(self, step: Step) -> None:
        """Note that a step has read what it reads; it may go where room is short."""
        with self._changed:
            if step in self._steps:
                self._spare[step] = self._steps.pop(step)
                self._moved()

    def finished(self, step: Step) -> None:
        """Note that a step is final; what no other step reads goes."""
        with self._changed:
            done = self._steps.pop(step, frozenset()) | self._spare.pop(step, frozenset())
            for shard in sorted(done):
                if self._next_use(shard) == _NEVER and not self._reading[shard]:
                    self._drop(shard)
            self._moved()

    def stop(self) -> None:
        """End all waiting: of those who fetch, and of those who read. What has arrived stays for the next run."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()

    def close(self, *, used_up: bool = False) -> None:
        """Stop, and close every file; `used_up`: nobody needs any of them again."""
        self.stop()
        for thread in self._threads:
            thread.join(2 * _LOOK_S)  # one that waits for a byte ends when it comes, or with the process
        with self._changed:
            for shard in [*self._here, *(self._left if used_up else ())]:
                if used_up:
                    self._drop(shard)
                else:
                    self._here.pop(shard).close()
            if used_up:
                with suppress(OSError):
                    (self.folder / PARTS).rmdir()

    def known(self, shards: Sequence[str], *kinds: Kind) -> int:
        """Return of how many shards a checksum is known, of some kinds or any: each has it, or would not be used."""
        found = (self.checksums.get(shard) for shard in shards)
        return sum(checksum is not None and (not kinds or checksum.kind in kinds) for checksum in found)

    def left_nbytes(self) -> int:
        """Return how much of the disk the shards take that earlier runs have left."""
        return sum(nbytes for _, nbytes in self._leftovers())

    def forget(self) -> None:
        """Remove what earlier runs have left: nobody will read it here."""
        with self._changed:
            for shard, _ in list(self._leftovers()):
                self._drop(shard)

    # What a reader does.

    def open(self, shard: str) -> ShelfFile:
        """Return a shard that is fetched when it is read."""
        return ShelfFile(self, shard)

    @contextmanager
    def lent(self, shard: str) -> Generator[File]:
        """Give the file of a shard, which stays while it is read; wait until it is here."""
        with self._changed:
            self._begin()
            while shard not in self._here:
                self._refuse(shard)
                if shard not in self._wanted:
                    self._wanted.append(shard)
                    self._changed.notify_all()
                self._changed.wait()
            with suppress(ValueError):
                self._wanted.remove(shard)
            self._reading[shard] += 1
            file = self._here[shard]
        try:
            yield file
        finally:
            with self._changed:
                self._reading[shard] -= 1
                self._reads += 1
                self._read_at[shard] = self._reads
                self._moved_at = time.monotonic()
                if self._short and not self._reading[shard]:
                    self._changed.notify_all()  # only then may reading less make room: reads are many

    def _refuse(self, shard: str) -> None:
        """Raise where waiting is in vain."""
        if self._stop.is_set():
            raise StoppedError
        if shard in self._failed:
            raise self._failed[shard]
        if self.files.entries[shard].nbytes > self.limit_nbytes:
            nbytes = self.files.entries[shard].nbytes
            raise MachineError(
                f"shard '{shard}' has {size(nbytes)}, more than the cache may hold ({size(self.limit_nbytes)})",
                where=self.files.where,
                fix=f"give --cache {-(-nbytes // 10**9)}GB or more",
            )

    # What threads do.

    def _begin(self) -> None:
        if self._threads or self._stop.is_set():
            return
        self._left = dict(self._leftovers())
        while self._left and self._taken_nbytes() > self.limit_nbytes:  # of a run that was allowed more
            self._drop(min(self._left, key=self._goes_first))
        for number in range(FETCHERS):
            thread = threading.Thread(target=self._fetch, name=f"fetch-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _leftovers(self) -> Iterator[tuple[str, int]]:
        for shard in self.files.entries:
            found = [path for path in (self.folder / shard, part_path(self.folder, shard)) if path.is_file()]
            if found and shard.endswith(".safetensors"):
                yield shard, sum(path.stat().st_size for path in found)

    def _fetch(self) -> None:
        while (shard := self._next()) is not None:
            try:
                checksum = self.checksums.get(shard)
                count = download(self.files, shard, self.folder, checksum, stop=self._stop, tell=self._tell)
                file = File(self.folder / shard)
            except StoppedError:
                return
            except Exception as error:
                with self._changed:
                    self._failed[shard] = error
                    self._coming.remove(shard)
                    self._left[shard] = sum(nbytes for name, nbytes in self._leftovers() if name == shard)
                    self._moved()
            else:
                with self._changed:
                    self.fetched_nbytes += count
                    self._here[shard] = file
                    self._coming.remove(shard)
                    self._moved()

    def _next(self) -> str | None:
        """Return the next shard to fetch, for which there is room now; None: it is over."""
        with self._changed:
            while not self._stop.is_set():
                shard = self._first_with_room()
                if shard is not None:
                    self._coming.add(shard)
                    self._left.pop(shard, None)
                    return shard
                self._changed.wait(_LOOK_S if self._wanted else None)
        return None

    def _first_with_room(self) -> str | None:
        absent = [shard for shard in self._wanted if self._is_absent(shard)]
        for shard in sorted(absent, key=self._next_use):
            if self._make_room(shard, self._makes_way(shard)):
                return shard
        self._short = bool(absent)
        if absent:
            return None  # what somebody waits for comes first: room for it must not be taken by others
        for shards in self._steps.values():
            for shard in sorted(shards):
                if self._is_absent(shard):  # in their order: a small one that comes late must not take the room
                    return shard if self._make_room(shard, _SPARE) else None
        return None

    def _is_absent(self, shard: str) -> bool:
        return not (shard in self._here or shard in self._coming or shard in self._failed)

    def _makes_way(self, shard: str) -> int:
        """Return the first step whose shards may go for one that somebody waits for: what is needed before it stays."""
        idle = not self._coming and time.monotonic() - self._moved_at > _PATIENCE_S
        if idle or not self._steps:
            return 0
        use = self._next_use(shard)
        return 1 if use >= _SPARE else use + 1

    def _make_room(self, shard: str, needed_from: int) -> bool:
        """Let go of what is not read before some step, if that makes room for a shard; what is needed last goes."""
        nbytes = self.files.entries[shard].nbytes
        missing = nbytes - (self.limit_nbytes - self._taken_nbytes(but=shard))
        going: list[str] = []
        for other in sorted({*self._here, *self._left} - {shard}, key=self._goes_first):
            if missing <= 0:
                break
            free = not self._reading[other] and other not in self._wanted
            if free and self._next_use(other) >= needed_from:
                going.append(other)
                missing -= self._nbytes_here(other)
        if missing > 0:
            return False
        for other in going:
            self._drop(other)
        return True

    def _goes_first(self, shard: str) -> tuple[int, int]:
        return -self._next_use(shard), self._read_at.get(shard, 0)

    def _next_use(self, shard: str) -> int:
        for number, shards in enumerate(self._steps.values()):
            if shard in shards:
                return number
        return _SPARE if any(shard in shards for shards in self._spare.values()) else _NEVER

    def _nbytes_here(self, shard: str) -> int:
        return self.files.entries[shard].nbytes if shard in self._here else self._left.get(shard, 0)

    def _taken_nbytes(self, but: str = "") -> int:
        """Return what all shards take, those that are coming in full; without what is here of the one that will."""
        coming = sum(self.files.entries[shard].nbytes for shard in self._coming)
        return coming + sum(self._nbytes_here(shard) for shard in {*self._here, *self._left} - {but})

    def _drop(self, shard: str) -> None:
        file = self._here.pop(shard, None)
        if file is not None:
            file.close()  # an open file would keep its room
        self._left.pop(shard, None)
        (self.folder / shard).unlink(missing_ok=True)
        part_path(self.folder, shard).unlink(missing_ok=True)

    def _moved(self) -> None:
        self._moved_at = time.monotonic()
        self._changed.notify_all()


class ShelfFile:
    """A shard that may come and go between two reads."""

    def __init__(self, shelf: Shelf, shard: str) -> None:
        self._shelf, self._shard = shelf, shard

    def read(self, begin: int, nbytes: int) -> Bytes:
        """Return some bytes."""
        with self._shelf.lent(self._shard) as file:
            return file.read(begin, nbytes)

    def read_into(self, begin: int, memory: Bytes) -> None:
        """Fill memory."""
        with self._shelf.lent(self._shard) as file:
            file.read_into(begin, memory)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Yield a long stretch in pieces with their offsets, each in memory of its own."""
        while begin < end:
            stop = min(end, begin // BLOCK * BLOCK + PIECE_NBYTES)
            yield begin, self.read(begin, stop - begin)
            begin = stop

    def close(self) -> None:
        """Do nothing: the shelf closes it when it goes."""


def _nobody(_: str) -> None:
    pass
