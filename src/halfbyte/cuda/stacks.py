"""A layer's routed experts on the device: for each projection and each stored tensor, one tensor of all experts."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.cuda.clock import Clock
from halfbyte.cuda.lanes import Lane, Mark
from halfbyte.cuda.projections import SHAPE, Projection
from halfbyte.cuda.slots import Slot, Slots
from halfbyte.errors import TensorError
from halfbyte.models.linears import StoredLinear
from halfbyte.source.headers import TensorInfo
from halfbyte.source.read import NUMPY_DTYPES, Reader

_AHEAD = 2  # slots that are being read while one is being copied
_PIECE_NBYTES = 1 << 25  # a thread reads at a time
_DTYPES = {
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "F8_E4M3": torch.uint8,  # bit patterns, as the kernels take them
    "F32": torch.float32,
}


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """A projection on the device: tensors [E, ...] by suffix."""

    of: Projection
    tensors: Mapping[str, torch.Tensor]

    def part(self, begin: int, end: int) -> Stack:
        """Return some experts of it, without copying."""
        return Stack(
            Projection(self.of.name, self.of.linears[begin:end]),
            {suffix: tensor[begin:end] for suffix, tensor in self.tensors.items()},
        )


Memory = list[dict[tuple[str, str], torch.Tensor]]  # of a layer: on each device, by projection and suffix


class Buffers:
    """Memory on devices for the stacks of some layers; a layer waits until one before it is done with its own."""

    def __init__(self, count: int, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._free: queue.SimpleQueue[Memory | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(self.fresh())

    def fresh(self) -> Memory:
        """Return memory that nothing has been taken of."""
        return [{} for _ in self._devices]

    def take(self) -> Memory:
        """Return the memory of a layer that is done."""
        memory = self._free.get()
        if memory is None:
            self._free.put(None)
            raise InterruptedError("no layer comes any more")
        return memory

    def close(self) -> None:
        """Let nobody wait any more: the run has failed, or was stopped."""
        while not self._free.empty():
            self._free.get()
        self._free.put(None)

    def give_back(self, memory: Memory) -> None:
        """Let another layer have it."""
        self._free.put(memory)

    def room(self, memory: Memory, at: int, key: tuple[str, str], nbytes: int) -> torch.Tensor:
        """Return `nbytes` of a layer's memory on one of the devices, which it keeps for those after it."""
        here = memory[at]
        if key not in here or here[key].numel() != nbytes:
            here[key] = torch.empty(nbytes, dtype=torch.uint8, device=self._devices[at])
        return here[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Tensors that are read into one slot, in the order of their files, and where each of them goes."""

    slot: Slot
    infos: list[TensorInfo]
    reads: list[Future[None]]


class Loader:
    """Fills stacks from the disk: threads read long stretches into slots, each device takes every tensor from there.

    Stretches are long because every read, however short, makes its thread ask for the interpreter, which the thread
    that sends work to the device has most of the time.
    """

    def __init__(self, reader: Reader, slots: Slots, lanes: Sequence[Lane], threads: int, clock: Clock) -> None:
        self._reader, self._slots, self._lanes, self._clock = reader, slots, lanes, clock
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def load(self, found: Sequence[Projection], buffers: Buffers, memory: Memory) -> list[dict[str, Stack]]:
        """Return the stacks on each device; the lanes' work is sent, not done."""
        stacks: list[dict[str, Stack]] = [{} for _ in self._lanes]
        targets: dict[str, list[torch.Tensor]] = {}
        for projection in found:
            tensors: list[dict[str, torch.Tensor]] = [{} for _ in self._lanes]
            for suffix in projection.suffixes():
                infos = [linear.parts[suffix] for linear in projection.linears]
                nbytes = sum(info.nbytes for info in infos)
                flats = [buffers.room(memory, at, (projection.name, suffix), nbytes) for at in range(len(self._lanes))]
                for there, flat in zip(tensors, flats, strict=True):
                    there[suffix] = _shaped(flat, infos)
                rows = [flat.view(len(infos), -1) for flat in flats]
                targets |= {info.name: [row[at] for row in rows] for at, info in enumerate(infos)}
            for made, there in zip(stacks, tensors, strict=True):
                made[projection.name] = Stack(projection, there)
        shapes = {linear.parts[SHAPE].name: linear for one in found for linear in one.linears if SHAPE in linear.parts}
        wanted = [info for one in found for linear in one.linears for info in linear.parts.values()
                  if info.name in targets or info.name in shapes]  # fmt: skip
        self._fetch(wanted, targets, shapes)
        return stacks

    def _fetch(
        self, infos: list[TensorInfo], targets: Mapping[str, list[torch.Tensor]], shapes: Mapping[str, StoredLinear]
    ) -> None:
        waiting: deque[_Batch] = deque()
        try:
            for part in in_batches(infos, self._slots.nbytes):
                while len(waiting) >= _AHEAD:
                    self._send(waiting.popleft(), targets, shapes)
                slot = self._slots.take()
                waiting.append(_Batch(slot, part, self._read(part, slot.memory.numpy())))
            while waiting:
                self._send(waiting.popleft(), targets, shapes)
        finally:
            for batch in waiting:
                wait([future for future in batch.reads if not future.cancel()])
                self._slots.give_back(batch.slot)

    def _read(self, infos: list[TensorInfo], memory: NDArray[np.uint8]) -> list[Future[None]]:
        def read(info: TensorInfo, target: NDArray[np.uint8]) -> None:
            with self._clock("read", info.nbytes):
                self._reader.read_into(info, target)

        reads: list[Future[None]] = []
        at = 0
        for shard, begin, end in stretches(infos):
            for start in range(begin, end, _PIECE_NBYTES):
                piece = TensorInfo(infos[0].name, "U8", (), shard, start, min(start + _PIECE_NBYTES, end))
                reads.append(self._pool.submit(read, piece, memory[at : at + piece.nbytes]))
                at += piece.nbytes
        return reads

    def _send(
        self, batch: _Batch, targets: Mapping[str, list[torch.Tensor]], shapes: Mapping[str, StoredLinear]
    ) -> None:
        try:
            for future in batch.reads:
                future.result()
        except BaseException:
            wait(batch.reads)
            self._slots.give_back(batch.slot)
            raise
        memory = batch.slot.memory
        ends: list[Mark] = []
        for device, lane in enumerate(self._lanes):
            at = 0
            with lane:
                begin = lane.mark()
                for info in batch.infos:
                    part = memory[at : at + info.nbytes]
                    at += info.nbytes
                    if info.name in targets:
                        targets[info.name][device].copy_(part, non_blocking=True)
                    else:
                        _check_shape(shapes[info.name], part.numpy().view(NUMPY_DTYPES[info.dtype]))
                ends.append(lane.mark())
            self._clock.between("to the device", begin, ends[-1], at)
        self._slots.give_back(batch.slot, *ends)


def in_batches(infos: Iterable[TensorInfo], nbytes: int) -> Iterator[list[TensorInfo]]:
    """Yield tensors in the order of their files, as many as fit into so many bytes."""
    batch: list[TensorInfo] = []
    filled = 0
    for info in sorted(infos, key=lambda info: (info.shard, info.begin)):
        if batch and filled + info.nbytes > nbytes:
            yield batch
            batch, filled = [], 0
        batch.append(info)
        filled += info.nbytes
    if batch:
        yield batch


def stretches(infos: Iterable[TensorInfo]) -> list[tuple[str, int, int]]:
    """Return the parts of files that tensors in the order of their files take: shard, begin and end."""
    found: list[tuple[str, int, int]] = []
    for info in infos:
        if found and found[-1][0] == info.shard and found[-1][2] == info.begin:
            found[-1] = (info.shard, found[-1][1], info.end)
        else:
            found.append((info.shard, info.begin, info.end))
    return found


def _check_shape(linear: StoredLinear, said: NDArray[Any]) -> None:
    if [int(number) for number in said] != [*linear.shape]:
        what = f"weight_shape says {[int(number) for number in said]}, not {[*linear.shape]}"
        raise TensorError(what, where=linear.module, fix="check the source file")


def _shaped(flat: torch.Tensor, infos: list[TensorInfo]) -> torch.Tensor:
    shape = infos[0].shape if infos[0].shape != (1,) else ()
    return flat.view(_DTYPES[infos[0].dtype]).view(len(infos), *shape)
