"""CUDA streams (lanes) and events (marks). On a CPU there is a single lane, and marks never wait."""

from __future__ import annotations

import threading
from types import TracebackType

import torch

_ONE_LANE = threading.RLock()  # for the CPU: Triton's interpreter runs one kernel at a time


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
