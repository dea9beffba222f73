"""The devices of a run, each with its lanes and rows. With several devices, a thread per device submits its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import torch

from halfbyte.engine.backends.cuda.forward import DeviceStream
from halfbyte.engine.backends.cuda.streams import Lane

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


@dataclass(eq=False)
class DeviceState:
    """A device with its lanes; `stream` has the hidden states of its rows, if layers run."""

    device: torch.device
    upload: Lane
    compute: Lane
    download: Lane
    stream: DeviceStream | None = None


class Devices:
    """All devices of a run. A context manager that stops their threads."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._all = [DeviceState(device, Lane(device), Lane(device), Lane(device)) for device in devices]
        # Always the same thread per device, because cuBLAS allocates a workspace for every thread that uses a device.
        self._threads = [ThreadPoolExecutor(1) for _ in devices]

    def __iter__(self) -> Iterator[DeviceState]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __enter__(self) -> Devices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def each(self, work: Callable[[DeviceState, _Argument], _Result], arguments: Sequence[_Argument]) -> list[_Result]:
        """Call `work` for each device in parallel; a single device uses the calling thread."""
        if len(self._all) == 1:
            return [work(self._all[0], arguments[0])]
        calls = zip(self._threads, self._all, arguments, strict=True)
        futures = [thread.submit(work, state, argument) for thread, state, argument in calls]
        wait(futures)  # after a failure, the others may still use memory that would be freed
        return [future.result() for future in futures]
