"""Run the jobs of a plan on threads. Reading, computing and writing overlap because each thread does all three.

A thread holds one job at a time (two matrices of one expert, some 60 MB). Peak memory depends on the largest job and
the number of threads, not on the number of layers or shards.
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

from halfbyte.checkpoint import hashing
from halfbyte.checkpoint.atomic_write import Journal, ShardFile
from halfbyte.checkpoint.hashing import Stamp
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import CachingReader, Reader, ShardStamps
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.jobs import JobInputs, JobOutput, apply, as_bytes
from halfbyte.engine.losses import LAYERS, losses
from halfbyte.formats.encoded import Quality
from halfbyte.formats.registry import FORMATS
from halfbyte.machine.resources import run_threads
from halfbyte.plan.manifest import Plan, Shard
from halfbyte.plan.rules import KEEP, Job

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from <malloc.h>
_PIECE_NBYTES = 1 << 25  # written by one thread at a time in `Runner.put`


class Countdown:
    """Calls a function when a counter reaches zero."""

    def __init__(self, count: int, callback: Callable[[], object]) -> None:
        self._count, self._callback, self._lock = count, callback, threading.Lock()

    def decrement(self) -> None:
        """Decrement the counter."""
        with self._lock:
            self._count -= 1
            last = self._count == 0
        if last:
            self._callback()


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSpan:
    """Adjacent tensors of a shard, their bytes, and the quantization error of each linear."""

    places: Sequence[TensorInfo]
    data: memoryview
    quality: Mapping[str, Quality]


class RunListener(Protocol):
    """Receives the progress of a run."""

    def written(self, tensor: str) -> None:
        """Handle an output tensor that is written; its shard is not final yet."""
        ...

    def final(self, shard: str) -> None:
        """Handle an output shard that is final."""
        ...

    def stop(self) -> None:
        """Release waiting threads because the run failed or was interrupted."""
        ...


InputsOf = Callable[[Job], JobInputs]


def no_inputs(_: Job) -> JobInputs:
    """Return the inputs of a job that needs no calibration data."""
    return JobInputs()


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: bytes written, total bytes, and the shard that was just finished, if any."""

    done_nbytes: int
    all_nbytes: int
    seconds: float
    shard: str = ""
    sqnr_db: float | None = None
    worst: tuple[str, float] | None = None
    node: str = ""  # that wrote the shard, in a Ray run


def _pieces(spans: Sequence[TensorInfo], reader: Reader) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the bytes of a tensor in pieces with their offsets. The rows of a pruned router are small: one piece."""
    if len(spans) == 1:
        yield from reader.pieces(spans[0])
    else:
        yield 0, np.concatenate([reader.raw(span) for span in spans])


class _Run:
    """State shared by the threads: open shards, their missing tensors, and the quality so far."""

    def __init__(
        self, plan: Plan, out: Path, journal: Journal, finished: Mapping[str, str], resources: Resources
    ) -> None:
        self.plan, self.out, self.journal = plan, out, journal
        self._waiting_nbytes, self._mark = resources.waiting_nbytes(), resources.mark
        self.places = {
            tensor.name: tensor for shard in plan.shards if shard.name not in finished for tensor in shard.tensors
        }
        self.missing = {s.name: len(s.tensors) for s in plan.shards if s.name not in finished}
        self.shards = {shard.name: shard for shard in plan.shards}
        self.files: dict[str, ShardFile] = {}
        self.opening: dict[str, threading.Lock] = {}
        self.quality: dict[str, list[tuple[str, Quality]]] = {}
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.start, self.done_nbytes = time.monotonic(), 0
        self.listeners: Sequence[RunListener] = ()
        self.hashed = hashing.Stamps(out)

    def first_place(self, job: Job) -> tuple[str, int]:
        """Return the shard and offset of a job's first output."""
        places = [self.places[output.name] for output in job.outputs if output.name in self.places]
        return min((place.shard, place.begin) for place in places)

    def file(self, shard: str) -> ShardFile:
        with self.lock:
            opening = self.opening.setdefault(shard, threading.Lock())
        with opening:  # allocating space can take seconds, in which other threads continue with other shards
            if shard not in self.files:
                planned = self.shards[shard]
                self.files[shard] = ShardFile(
                    self.out / shard, planned.head, planned.nbytes, self._waiting_nbytes, mark=self._mark
                )
            return self.files[shard]

    def write(self, output: JobOutput) -> list[str]:
        """Write a job's tensors; return the shards that are now complete."""
        complete: list[str] = []
        for name, tensor in output.tensors.items():
            if (place := self.places.get(name)) is None:
                continue  # in a shard that an earlier run finished
            data = as_bytes(tensor)
            assert len(data) == place.nbytes, name
            self.file(place.shard).write(data, place.begin)
            complete += self._count(place, output.quality.get(name.rpartition(".")[0]))
        return complete

    def copy(self, job: Job, reader: Reader) -> list[str]:
        """Copy a job's tensors; return the shards that are now complete."""
        complete: list[str] = []
        for name, spans in job.copies():
            if (place := self.places.get(name)) is not None:
                file = self.file(place.shard)  # also opens the shard of an empty tensor, which has no pieces
                for offset, piece in _pieces(spans, reader):
                    file.write(piece.data, place.begin + offset)
                complete += self._count(place, None)
        return complete

    def count(self, places: Sequence[TensorInfo], quality: Mapping[str, Quality]) -> list[str]:
        """Count written tensors; return the shards that are now complete."""
        return [shard for place in places for shard in self._count(place, quality.get(place.name.rpartition(".")[0]))]

    def _count(self, place: TensorInfo, quality: Quality | None) -> list[str]:
        """Count a written tensor; return its shard if no tensor is missing anymore."""
        with self.lock:
            self.done_nbytes += place.nbytes
            self.missing[place.shard] -= 1
            if quality is not None:
                self.quality.setdefault(place.shard, []).append((place.name, quality))
            complete = self.missing[place.shard] == 0
        for listener in self.listeners:
            listener.written(place.name)
        return [place.shard] if complete else []

    def finish(self, shard: str) -> Progress:
        """Finalize a shard and add it to the journal."""
        digest = self.files.pop(shard).finish()
        with self.lock:
            self.done_nbytes += len(self.shards[shard].head)
        self.hashed.add(shard, Stamp.of((self.out / shard).stat(), digest))
        encoded = sorted(self.quality.pop(shard, []), key=lambda named: named[0])  # independent of thread order
        total = encoded[0][1] if encoded else None
        for _, quality in encoded[1:]:
            total = total.merge(quality) if total else quality
        # The scales of a linear carry its quality too: report the weight.
        rated = [(f"{name.rpartition('.')[0]}.weight", quality.sqnr_db) for name, quality in encoded]
        worst = min(rated, key=lambda pair: pair[1], default=None)
        seconds = round(time.monotonic() - self.start, 3)
        sqnr = total.sqnr_db if total else None
        entry: dict[str, Any] = {"shard": shard, "sha256": digest, "nbytes": self.shards[shard].nbytes}
        entry |= {"seconds": seconds, LAYERS: losses(self._linears(encoded), self.plan.model.family)}
        # JSON has no infinity: null means lossless, or nothing quantized.
        finite = sqnr if sqnr is not None and math.isfinite(sqnr) else None
        self.journal.add({**entry, "sqnr_db": finite, "worst": worst if worst and math.isfinite(worst[1]) else None})
        return replace(self.progress(shard), sqnr_db=sqnr, worst=worst)

    def take(self, entry: Mapping[str, Any], node: str) -> Progress:
        """Add a shard that a node wrote to the journal, with the seconds of the driver's clock, as `status` expects."""
        shard = str(entry["shard"])
        self.journal.add({**entry, "seconds": round(time.monotonic() - self.start, 3)})
        self.done_nbytes += self.shards[shard].nbytes
        return replace(self.progress(shard), sqnr_db=entry["sqnr_db"], worst=entry["worst"], node=node)

    def _linears(self, encoded: Sequence[tuple[str, Quality]]) -> list[tuple[str, Quality]]:
        """Return the linears whose codes are among these tensors; their scales may be in other shards."""
        rules = self.plan.recipe.quantize
        codes = f".{FORMATS[rules.format].tensors[0].suffix}" if rules else ""
        return [(name.removesuffix(codes), quality) for name, quality in encoded if codes and name.endswith(codes)]

    def progress(self, message: str) -> Progress:
        """Return the progress of the run."""
        all_nbytes = sum(self.shards[name].nbytes for name in self.missing)
        return Progress(self.done_nbytes, all_nbytes, round(time.monotonic() - self.start, 3), message)


def _keep_freed_memory() -> None:
    """Make glibc reuse freed buffers for the next job instead of returning them to the kernel, to avoid page faults."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(option, 1 << 30)


class Runner:
    """Runs jobs of a plan, all at once or in groups. A context manager that closes all files."""

    def __init__(  # noqa: PLR0913 - options are keyword-only
        self,
        plan: Plan,
        out: Path,
        journal: Journal,
        finished: Mapping[str, str],
        *,
        seen: ShardStamps,
        resources: Resources,
        progress: Callable[[Progress], None] | None,
        listeners: Sequence[RunListener] = (),
    ) -> None:
        self._run = _Run(plan, out, journal, finished, resources)
        self._run.listeners = self._listeners = listeners
        self._plan, self._progress = plan, progress
        self.reader = CachingReader(plan.checkpoint, seen)
        self._pool = ThreadPoolExecutor(resources.threads or run_threads())
        self._finishing: deque[Future[None]] = deque()

    def __enter__(self) -> Runner:
        _keep_freed_memory()
        self.reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.stop.set()  # after an error or Ctrl-C, running jobs end within a second and queued ones are skipped
        for listener in self._listeners if kind is not None else ():
            listener.stop()  # jobs may be waiting for it
        self._pool.shutdown(cancel_futures=True)
        for file in self._run.files.values():
            file.abandon()
        self.reader.__exit__(kind, error, trace)

    def save_hashes(self) -> None:
        """Save the hashes of the written shards, so that later commands need not compute them again."""
        self._run.hashed.save()

    def pending(self) -> list[Job]:
        """Return the jobs of unfinished shards in file order, so that shards can be hashed while they are written."""
        places = self._run.places
        jobs = [job for job in self._plan.jobs if any(output.name in places for output in job.outputs)]
        return sorted(jobs, key=self._run.first_place)

    def pending_shards(self) -> list[Shard]:
        """Return the unfinished shards."""
        return [self._run.shards[name] for name in self._run.missing]

    def take(self, entry: Mapping[str, Any], node: str) -> None:
        """Add a shard that another machine wrote to the journal."""
        result = self._run.take(entry, node)
        if self._progress is not None:
            self._progress(result)

    def do(self, jobs: Sequence[Job], inputs_of: InputsOf = no_inputs) -> None:
        """Run jobs and wait for them; `inputs_of` returns their calibrated inputs."""
        done, _ = wait(self.start(jobs, inputs_of), return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()

    def start(self, jobs: Sequence[Job], inputs_of: InputsOf = no_inputs) -> list[Future[None]]:
        """Start jobs without waiting for them."""
        return [self._pool.submit(self._work, job, inputs_of) for job in jobs]

    def open_ahead(self, jobs: Sequence[Job]) -> list[Future[None]]:
        """Start opening the shards that jobs will write to: allocating a file on tmpfs takes seconds."""
        places = (self._run.places.get(output.name) for job in jobs for output in job.outputs)
        shards = dict.fromkeys(place.shard for place in places if place is not None)
        return [self._pool.submit(self._open, shard) for shard in shards]

    def _open(self, shard: str) -> None:
        if not self._run.stop.is_set():
            self._run.file(shard)

    def settle(self) -> None:
        """Wait until the spans passed to `put`, which must be written, are counted and their shards final."""
        while self._finishing:
            self._finishing.popleft().result()

    def place(self, name: str) -> TensorInfo | None:
        """Return the position of an output tensor; None if its shard is already finished."""
        return self._run.places.get(name)

    def put(self, span: EncodedSpan) -> list[Future[None]]:
        """Start writing tensors that a GPU encoded; the caller may reuse their memory when all futures are done."""
        places = list(span.places)
        shard, begin = places[0].shard, places[0].begin
        starts = range(0, len(span.data), _PIECE_NBYTES)
        written = Countdown(len(starts), lambda: self._finishing.append(self._pool.submit(self._count, span)))
        return [
            self._pool.submit(self._put, shard, begin + start, span.data[start : start + _PIECE_NBYTES], written)
            for start in starts
        ]

    def say(self, message: str) -> None:
        """Report a progress message that is not about a finished shard."""
        if self._progress is not None:
            self._progress(self._run.progress(message))

    def _work(self, job: Job, inputs_of: InputsOf) -> None:
        if not self._run.stop.is_set():
            self._finish(self._do(job, inputs_of))

    def _put(self, shard: str, offset: int, data: memoryview, written: Countdown) -> None:
        if not self._run.stop.is_set():
            self._run.file(shard).write(data, offset, lent=True)
            written.decrement()

    def _count(self, span: EncodedSpan) -> None:
        self._finish(self._run.count(span.places, span.quality))

    def _finish(self, shards: list[str]) -> None:
        for shard in shards:
            self.reader.refuse_changes()
            result = self._run.finish(shard)
            for listener in self._listeners:
                listener.final(shard)
            if self._progress is not None:
                self._progress(result)

    def _do(self, job: Job, inputs_of: InputsOf) -> list[str]:
        if job.action == KEEP:
            return self._run.copy(job, self.reader)
        return self._run.write(apply(job, self.reader, self._plan.recipe.quantize, inputs_of(job)))
