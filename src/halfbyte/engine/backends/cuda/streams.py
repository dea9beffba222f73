"""CUDA streams (lanes), events (marks), page-locked buffers (slots) for asynchronous copies, and timing.

On a CPU there is a single lane, and marks never wait.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

import torch

from halfbyte.engine.backends.cuda.placement import SLOT_NBYTES

_ONE_LANE = threading.RLock()  # for the CPU: Triton's interpreter runs one kernel at a time
_INTERPRETED_NBYTES = 1 << 20  # for Triton's interpreter on the CPU


class Mark:
    """A point in a lane's work (a CUDA event)."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self.event = event

    def wait(self) -> None:
        """Block this thread until the lane reaches the mark."""
        if self.event is not None:
            self.event.synchronize()

    def seconds_to(self, later: Mark) -> float:
        """Return the device time between two marks that were reached."""
        if self.event is None or later.event is None:
            return 0.0
        return self.event.elapsed_time(later.event) / 1000


class Lane:
    """A CUDA stream: in-order work that runs concurrently with other lanes. `with lane:` makes it current."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._entered: list[torch.cuda.StreamContext] = []

    def __enter__(self) -> Lane:
        if self._stream is not None:
            context = torch.cuda.stream(self._stream)
            context.__enter__()
            self._entered.append(context)
        else:
            _ONE_LANE.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._entered.pop().__exit__(kind, error, trace)
        else:
            _ONE_LANE.release()

    def mark(self) -> Mark:
        """Return a mark after all work submitted so far."""
        if self._stream is None:
            return Mark(None)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return Mark(event)

    def follow(self, mark: Mark) -> None:
        """Make work submitted from now on wait for a mark of another lane."""
        if self._stream is not None and mark.event is not None:
            self._stream.wait_event(mark.event)


def current_lane(device: torch.device) -> AbstractContextManager[object]:
    """Return a context for kernels in the current stream; on a CPU it waits until no other thread is in its lane."""
    return nullcontext() if device.type == "cuda" else _ONE_LANE


def slot_nbytes(device: torch.device) -> int:
    """Return the size of a slot."""
    return SLOT_NBYTES if device.type == "cuda" else _INTERPRETED_NBYTES


class Slot:
    """A page-locked buffer; `marks` are the events after which the devices no longer use it."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.marks: tuple[Mark, ...] = ()


class Slots:
    """A pool of slots; `take` blocks until one is free."""

    def __init__(self, count: int, device: torch.device, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(Slot(nbytes, device))

    def take(self) -> Slot:
        """Return a slot that no thread or device uses."""
        slot = self._free.get()
        for mark in slot.marks:
            mark.wait()
        return slot

    def give_back(self, slot: Slot, *marks: Mark) -> None:
        """Return a slot to the pool; it is free once the marks are reached."""
        slot.marks = marks
        self._free.put(slot)


class Clock:
    """Seconds and bytes by name. Device times are read at the end, because reading them synchronizes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}
        self._nbytes: dict[str, int] = {}
        self._marks: list[tuple[str, Mark, Mark]] = []

    @contextmanager
    def __call__(self, name: str, nbytes: int = 0) -> Generator[None]:
        """Time a block of this thread."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - begin, nbytes)

    def between(self, name: str, begin: Mark, end: Mark, nbytes: int = 0) -> None:
        """Time the device between two marks."""
        with self._lock:
            self._marks.append((name, begin, end))
            self._nbytes[name] = self._nbytes.get(name, 0) + nbytes

    def _add(self, name: str, seconds: float, nbytes: int) -> None:
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
            self._nbytes[name] = self._nbytes.get(name, 0) + nbytes

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return all times and bytes; synchronizes."""
        for name, begin, end in self._marks:
            end.wait()
            self._add(name, begin.seconds_to(end), 0)
        self._marks.clear()
        return {name: {"seconds": self._seconds[name], "nbytes": self._nbytes[name]} for name in self._seconds}
