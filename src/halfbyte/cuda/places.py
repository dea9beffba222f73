"""The devices of a pass, each with its lanes and its rows; a thread sends each of several its work, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import torch

from halfbyte.cuda.forward import DeviceStream
from halfbyte.cuda.lanes import Lane

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(eq=False)
class Place:
    """A device; `stream` has its rows, where layers run."""

    device: torch.device
    coming: Lane
    running: Lane
    going: Lane
    stream: DeviceStream | None = None


class Places:
    """All of them. A context manager that ends the threads."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._all = [Place(device, Lane(device), Lane(device), Lane(device)) for device in devices]
        # A thread each, always the same: cuBLAS keeps memory for every thread that has used a device.
        self._threads = [ThreadPoolExecutor(1) for _ in devices]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __enter__(self) -> Places:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def each(self, do: Callable[[Place, _Given], _Found], given: Sequence[_Given]) -> list[_Found]:
        """Let each place do its own, side by side; a single one on this thread."""
        if len(self._all) == 1:
            return [do(self._all[0], given[0])]
        mine = zip(self._threads, self._all, given, strict=True)
        futures = [thread.submit(do, place, one) for thread, place, one in mine]
        wait(futures)  # where one has failed, the others may still use what would be freed
        return [future.result() for future in futures]
