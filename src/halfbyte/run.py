"""Run the jobs of a plan on threads. Reading, computing and writing overlap because each thread does all three.

A thread holds one job at a time (two matrices of one expert, some 60 MB), so memory depends on the largest job and the
number of threads, and never on the number of layers or shards.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halfbyte.losses import LAYERS, losses
from halfbyte.numerics.chunks import run_threads
from halfbyte.numerics.encoded import Quality
from halfbyte.numerics.formats import FORMATS
from halfbyte.plan.layout import Shard
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import KEEP, Job
from halfbyte.source.headers import TensorInfo
from halfbyte.source.hold import HoldingReader
from halfbyte.source.read import Reader, Stamps
from halfbyte.transform.apply import Done, Given, apply, as_bytes
from halfbyte.write import WAITING_NBYTES, Journal, ShardFile

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_OPEN_SHARDS = 3  # of a pass on a GPU: one that is hashed, one that is written, one that both layers reach into
_PIECE_NBYTES = 1 << 25  # of what was made elsewhere, a thread writes at a time


class Countdown:
    """Calls something once, after so many others."""

    def __init__(self, left: int, then: Callable[[], object]) -> None:
        self._left, self._then, self._lock = left, then, threading.Lock()

    def one_less(self) -> None:
        """Note that one is done."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._then()


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Tensors that follow each other in a shard, their bytes, and what encoding each linear lost."""

    places: Sequence[TensorInfo]
    data: memoryview
    quality: Mapping[str, Quality]


class Watch(Protocol):
    """Somebody who is told what a run has done with."""

    def written(self, tensor: str) -> None:
        """Note that a tensor of the output is written, in a shard that is not final yet."""
        ...

    def final(self, shard: str) -> None:
        """Note that a shard of the output is final."""
        ...

    def stop(self) -> None:
        """Let nobody wait any more: the run ends before its time."""
        ...


FromData = Callable[[Job], Given]


def nothing_given(_: Job) -> Given:
    """Everything is made from the source."""
    return Given()


@dataclass(frozen=True, slots=True)
class Means:
    """What a run may use; it changes how long a run takes, and no byte."""

    threads: int | None = None  # None: cores and two
    device: str = "cpu"
    device_memory: int | None = None  # None: all that is free
    ray: str | None = None  # the address of a cluster that does it
    mark: str = ""  # in the temporary names of shards, where others may be making the same

    @property
    def on_cpu(self) -> bool:
        """Whether everything runs on the processor."""
        return self.device == "cpu"

    def waiting_nbytes(self) -> int | None:
        """Return how much of each open shard may wait in memory until it is hashed; what cannot is read again.

        The first tensors of an NVFP4 shard are scales of all its experts, so the last expert decides when hashing
        begins. A machine with a GPU has the memory to wait, and its disk is what a pass waits for.
        """
        if self.on_cpu:
            return None
        from halfbyte.machine.doctor import memory_facts  # noqa: PLC0415 - which only these runs ask

        memory = memory_facts()
        known = [nbytes for nbytes in (memory.available_nbytes, memory.limit_nbytes) if nbytes is not None]
        return max(min(known) // _OPEN_SHARDS // 4, WAITING_NBYTES) if known else None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is: bytes written of all, and the shard that was just finished, if one was."""

    done_nbytes: int
    all_nbytes: int
    seconds: float
    shard: str = ""
    sqnr_db: float | None = None
    worst: tuple[str, float] | None = None
    node: str = ""  # that made it, where there are several


def _pieces(stretches: Sequence[TensorInfo], reader: Reader) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the bytes of a tensor in pieces with their offsets. Rows of a router are few and short: one piece."""
    if len(stretches) == 1:
        yield from reader.pieces(stretches[0])
    else:
        yield 0, np.concatenate([reader.raw(stretch) for stretch in stretches])


class _Run:
    """The state that threads share: open shards, what each still lacks, and the quality so far."""

    def __init__(self, plan: Plan, out: Path, journal: Journal, finished: Mapping[str, str], means: Means) -> None:
        self.plan, self.out, self.journal = plan, out, journal
        self._waiting_nbytes, self._mark = means.waiting_nbytes(), means.mark
        self.places = {
            tensor.name: tensor for shard in plan.shards if shard.name not in finished for tensor in shard.tensors
        }
        self.missing = {s.name: len(s.tensors) for s in plan.shards if s.name not in finished}
        self.shards = {shard.name: shard for shard in plan.shards}
        self.files: dict[str, ShardFile] = {}
        self.opening: dict[str, threading.Lock] = {}
        self.quality: dict[str, list[tuple[str, Quality]]] = {}
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.begin, self.done_nbytes = time.monotonic(), 0
        self.watches: Sequence[Watch] = ()

    def first_place(self, job: Job) -> tuple[str, int]:
        """Return the shard and offset where a job's output begins."""
        places = [self.places[output.name] for output in job.outputs if output.name in self.places]
        return min((place.shard, place.begin) for place in places)

    def file(self, shard: str) -> ShardFile:
        with self.lock:
            opening = self.opening.setdefault(shard, threading.Lock())
        with opening:  # taking its space can last seconds, for which others go on with other shards
            if shard not in self.files:
                planned = self.shards[shard]
                self.files[shard] = ShardFile(
                    self.out / shard, planned.head, planned.nbytes, self._waiting_nbytes, mark=self._mark
                )
            return self.files[shard]

    def write(self, done: Done) -> list[str]:
        """Write a job's tensors; return the shards that are complete now."""
        complete: list[str] = []
        for name, tensor in done.tensors.items():
            if (place := self.places.get(name)) is None:
                continue  # this part of the job is in a shard that an earlier run finished
            data = as_bytes(tensor)
            assert len(data) == place.nbytes, name
            self.file(place.shard).write(data, place.begin)
            complete += self._count(place, done.quality.get(name.rpartition(".")[0]))
        return complete

    def copy(self, job: Job, reader: Reader) -> list[str]:
        """Copy a job's tensors; return the shards that are complete now."""
        complete: list[str] = []
        for name, stretches in job.copies():
            if (place := self.places.get(name)) is not None:
                file = self.file(place.shard)  # also for a tensor without elements, which has no pieces
                for at, piece in _pieces(stretches, reader):
                    file.write(piece.data, place.begin + at)
                complete += self._count(place, None)
        return complete

    def count(self, places: Sequence[TensorInfo], quality: Mapping[str, Quality]) -> list[str]:
        """Note that tensors are written; return the shards that are complete now."""
        return [shard for place in places for shard in self._count(place, quality.get(place.name.rpartition(".")[0]))]

    def _count(self, place: TensorInfo, quality: Quality | None) -> list[str]:
        """Note that a tensor is written; return its shard if that was the last one missing."""
        with self.lock:
            self.done_nbytes += place.nbytes
            self.missing[place.shard] -= 1
            if quality is not None:
                self.quality.setdefault(place.shard, []).append((place.name, quality))
            complete = self.missing[place.shard] == 0
        for watch in self.watches:
            watch.written(place.name)
        return [place.shard] if complete else []

    def finish(self, shard: str) -> Progress:
        """Make a shard final and journal it."""
        digest = self.files.pop(shard).finish()
        made = sorted(
            self.quality.pop(shard, []), key=lambda pair: pair[0]
        )  # sums depend on their order, not on threads
        total = made[0][1] if made else None
        for _, quality in made[1:]:
            total = total.merge(quality) if total else quality
        worst = min(((name, quality.sqnr_db) for name, quality in made), key=lambda pair: pair[1], default=None)
        seconds = round(time.monotonic() - self.begin, 3)
        sqnr = total.sqnr_db if total else None
        entry: dict[str, Any] = {"shard": shard, "sha256": digest, "nbytes": self.shards[shard].nbytes}
        entry |= {"seconds": seconds, LAYERS: losses(self._linears(made), self.plan.model.architecture)}
        # JSON has no infinity: null is "nothing was lost", or nothing was quantized.
        finite = sqnr if sqnr is not None and math.isfinite(sqnr) else None
        self.journal.add({**entry, "sqnr_db": finite, "worst": worst if worst and math.isfinite(worst[1]) else None})
        return replace(self.progress(shard), sqnr_db=sqnr, worst=worst)

    def take(self, entry: Mapping[str, Any], node: str) -> Progress:
        """Journal a shard that a node made; `status` wants seconds of one clock, and that is ours."""
        shard = str(entry["shard"])
        self.journal.add({**entry, "seconds": round(time.monotonic() - self.begin, 3)})
        self.done_nbytes += sum(tensor.nbytes for tensor in self.shards[shard].tensors)
        return replace(self.progress(shard), sqnr_db=entry["sqnr_db"], worst=entry["worst"], node=node)

    def _linears(self, made: Sequence[tuple[str, Quality]]) -> list[tuple[str, Quality]]:
        """Return each linear whose codes are among some tensors, once: its scales may lie in other shards."""
        rules = self.plan.recipe.quantize
        codes = f".{FORMATS[rules.format].tensors[0].suffix}" if rules else ""
        return [(name.removesuffix(codes), quality) for name, quality in made if codes and name.endswith(codes)]

    def progress(self, what: str) -> Progress:
        """Return where the run is."""
        all_nbytes = sum(place.nbytes for place in self.places.values())
        return Progress(self.done_nbytes, all_nbytes, round(time.monotonic() - self.begin, 3), what)


def _keep_freed_memory() -> None:
    """Let glibc hand freed buffers to the next job: given back to the kernel, they would be faulted in anew."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(option, 1 << 30)


class Runner:
    """Does jobs of a plan, all at once or some at a time; a context manager that leaves no file open."""

    def __init__(  # noqa: PLR0913 - keyword-only, but for what a run cannot be without
        self,
        plan: Plan,
        out: Path,
        journal: Journal,
        finished: Mapping[str, str],
        *,
        seen: Stamps,
        means: Means,
        progress: Callable[[Progress], None] | None,
        watches: Sequence[Watch] = (),
    ) -> None:
        self._run = _Run(plan, out, journal, finished, means)
        self._run.watches = self._watches = watches
        self._plan, self._progress = plan, progress
        self.reader = HoldingReader(plan.checkpoint, seen)
        self._pool = ThreadPoolExecutor(means.threads or run_threads())
        self._finishing: deque[Future[None]] = deque()

    def __enter__(self) -> Runner:
        _keep_freed_memory()
        self.reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.stop.set()  # an error or Ctrl-C: jobs in flight end within a second, the others never begin
        for watch in self._watches if kind is not None else ():
            watch.stop()  # jobs may wait for them
        self._pool.shutdown(cancel_futures=True)
        for file in self._run.files.values():
            file.abandon()
        self.reader.__exit__(kind, error, trace)

    def pending(self) -> list[Job]:
        """Return what unfinished shards need, in the order of the files: so they are hashed as they are written."""
        places = self._run.places
        found = [job for job in self._plan.jobs if any(output.name in places for output in job.outputs)]
        return sorted(found, key=self._run.first_place)

    def pending_shards(self) -> list[Shard]:
        """Return the shards that no earlier run has finished."""
        return [self._run.shards[name] for name in self._run.missing]

    def take(self, entry: Mapping[str, Any], node: str) -> None:
        """Journal a shard that another machine has made."""
        result = self._run.take(entry, node)
        if self._progress is not None:
            self._progress(result)

    def do(self, jobs: Sequence[Job], given: FromData = nothing_given) -> None:
        """Do jobs; `given` knows what is not made from the source."""
        done, _ = wait(self.start(jobs, given), return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()

    def start(self, jobs: Sequence[Job], given: FromData = nothing_given) -> list[Future[None]]:
        """Begin jobs without waiting for them."""
        return [self._pool.submit(self._work, job, given) for job in jobs]

    def open_ahead(self, jobs: Sequence[Job]) -> list[Future[None]]:
        """Begin to open the shards that jobs will write to: taking the space of a file in memory lasts seconds."""
        places = (self._run.places.get(output.name) for job in jobs for output in job.outputs)
        shards = dict.fromkeys(place.shard for place in places if place is not None)
        return [self._pool.submit(self._open, shard) for shard in shards]

    def _open(self, shard: str) -> None:
        if not self._run.stop.is_set():
            self._run.file(shard)

    def settle(self) -> None:
        """Wait until everything that was put is in final shards, or raise what went wrong. Its writing must be done."""
        while self._finishing:
            self._finishing.popleft().result()

    def place(self, name: str) -> TensorInfo | None:
        """Return where a tensor goes; None where an earlier run has finished its shard."""
        return self._run.places.get(name)

    def put(self, stretch: Stretch) -> list[Future[None]]:
        """Begin to write what was made elsewhere; its memory is its maker's again as soon as all these are done."""
        places = list(stretch.places)
        shard, begin = places[0].shard, places[0].begin
        starts = range(0, len(stretch.data), _PIECE_NBYTES)
        written = Countdown(len(starts), lambda: self._finishing.append(self._pool.submit(self._counted, stretch)))
        return [
            self._pool.submit(self._put, shard, begin + start, stretch.data[start : start + _PIECE_NBYTES], written)
            for start in starts
        ]

    def say(self, what: str) -> None:
        """Tell whoever watches about something that is no shard."""
        if self._progress is not None:
            self._progress(self._run.progress(what))

    def _work(self, job: Job, given: FromData) -> None:
        if not self._run.stop.is_set():
            self._finish(self._do(job, given))

    def _put(self, shard: str, offset: int, data: memoryview, written: Countdown) -> None:
        if not self._run.stop.is_set():
            self._run.file(shard).write(data, offset, lent=True)
            written.one_less()

    def _counted(self, stretch: Stretch) -> None:
        self._finish(self._run.count(stretch.places, stretch.quality))

    def _finish(self, shards: list[str]) -> None:
        for shard in shards:
            self.reader.refuse_changes()
            result = self._run.finish(shard)
            for watch in self._watches:
                watch.final(shard)
            if self._progress is not None:
                self._progress(result)

    def _do(self, job: Job, given: FromData) -> list[str]:
        if job.action == KEEP:
            return self._run.copy(job, self.reader)
        return self._run.write(apply(job, self.reader, self._plan.recipe.quantize, given(job)))
