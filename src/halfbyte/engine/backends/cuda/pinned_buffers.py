"""Page-locked host memory for asynchronous copies (DMA) to and from the device."""

from __future__ import annotations

import queue

import torch

from halfbyte.engine.backends.cuda.memory import SLOT_NBYTES
from halfbyte.engine.backends.cuda.streams import Mark

_INTERPRETED_NBYTES = 1 << 20  # for Triton's interpreter on the CPU


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
