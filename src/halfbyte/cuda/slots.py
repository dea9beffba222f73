"""Page-locked memory that bytes travel through: the device copies from and to it without the processor."""

from __future__ import annotations

import queue

import torch

from halfbyte.cuda.lanes import Mark
from halfbyte.cuda.memory import SLOT_NBYTES

_INTERPRETED_NBYTES = 1 << 20  # where nothing is large


def slot_nbytes(device: torch.device) -> int:
    """Return the size of a slot."""
    return SLOT_NBYTES if device.type == "cuda" else _INTERPRETED_NBYTES


class Slot:
    """One piece of memory; `marks` are where the devices are done with it."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.memory = torch.empty(nbytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.marks: tuple[Mark, ...] = ()


class Slots:
    """Some slots; whoever takes one waits until it is free."""

    def __init__(self, count: int, device: torch.device, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(Slot(nbytes, device))

    def take(self) -> Slot:
        """Return a slot that neither a thread nor the device uses."""
        slot = self._free.get()
        for mark in slot.marks:
            mark.wait()
        return slot

    def give_back(self, slot: Slot, *marks: Mark) -> None:
        """Let others have it, from the marks on."""
        slot.marks = marks
        self._free.put(slot)
