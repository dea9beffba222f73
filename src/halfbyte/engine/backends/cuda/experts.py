"""Routed experts on the device: loaded layer by layer, stacked into one tensor per projection, and decoded to BF16."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import NUMPY_DTYPES, Reader
from halfbyte.engine.backends.cuda.placement import SHAPE, SLOT_NBYTES, Projection, projections
from halfbyte.engine.backends.cuda.streams import Clock, Lane, Mark, Slot, Slots, current_lane
from halfbyte.errors import TensorError
from halfbyte.families.family import PROJECTIONS
from halfbyte.families.linears import StoredLinear
from halfbyte.families.weights import Weights
from halfbyte.formats.registry import FORMATS
from halfbyte.forward.experts import Expert
from halfbyte.forward.experts import Weights as ExpertWeights
from halfbyte.plan.rules import ROUTED

if TYPE_CHECKING:
    from typing_extensions import Self

_AHEAD = 2  # slots being read while one is being copied
_PIECE_NBYTES = 1 << 25  # per read of a thread
_DTYPES = {
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "F8_E4M3": torch.uint8,  # bit patterns, as the kernels expect
    "F32": torch.float32,
}
_STORED_SLOTS = 3  # two being read, one being copied
_STORED_READERS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """A projection on the device: tensors [E, ...] by suffix."""

    of: Projection
    tensors: Mapping[str, torch.Tensor]

    def part(self, begin: int, end: int) -> Stack:
        """Return a range of the experts, without copying."""
        return Stack(
            Projection(self.of.name, self.of.linears[begin:end]),
            {suffix: tensor[begin:end] for suffix, tensor in self.tensors.items()},
        )

    def select(self, linears: Sequence[StoredLinear]) -> Stack:
        """Return some of the experts with the names in `linears`, copied unless they are a range of the stack."""
        at = {linear.stored_as: number for number, linear in enumerate(self.of.linears)}
        numbers = [at[linear.stored_as] for linear in linears]
        projection = Projection(self.of.name, tuple(linears))
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return Stack(projection, self.part(numbers[0], numbers[-1] + 1).tensors)
        rows = torch.tensor(numbers, device=next(iter(self.tensors.values())).device)
        return Stack(projection, {suffix: tensor[rows] for suffix, tensor in self.tensors.items()})


Memory = list[dict[tuple[str, str], torch.Tensor]]  # of a layer: per device, by projection and suffix


class Buffers:
    """Device memory for the stacks of a fixed number of layers; `take` blocks until a layer returns its memory."""

    def __init__(self, count: int, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._free: queue.SimpleQueue[Memory | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(self.fresh())

    def fresh(self) -> Memory:
        """Return memory without allocations."""
        return [{} for _ in self._devices]

    def take(self) -> Memory:
        """Return the memory of a finished layer."""
        memory = self._free.get()
        if memory is None:
            self._free.put(None)
            raise InterruptedError("the run was stopped")
        return memory

    def close(self) -> None:
        """Wake all waiting threads, because the run failed or was interrupted."""
        while not self._free.empty():
            self._free.get()
        self._free.put(None)

    def give_back(self, memory: Memory) -> None:
        """Make the memory available to another layer."""
        self._free.put(memory)

    def room(self, memory: Memory, at: int, key: tuple[str, str], nbytes: int) -> torch.Tensor:
        """Return a buffer of `nbytes` on one of the devices; later layers reuse it."""
        buffers = memory[at]
        if key not in buffers or buffers[key].numel() != nbytes:
            buffers[key] = torch.empty(nbytes, dtype=torch.uint8, device=self._devices[at])
        return buffers[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Tensors that are read into one slot, in file order."""

    slot: Slot
    infos: list[TensorInfo]
    reads: list[Future[None]]


class Loader:
    """Loads stacks from disk: threads read long ranges into slots, and each device copies the tensors from there.

    Ranges are long because every read acquires the GIL, which the thread that submits work to the device holds most of
    the time.
    """

    def __init__(self, reader: Reader, slots: Slots, lanes: Sequence[Lane], threads: int, clock: Clock) -> None:
        self._reader, self._slots, self._lanes, self._clock = reader, slots, lanes, clock
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def load(self, projections: Sequence[Projection], buffers: Buffers, memory: Memory) -> list[dict[str, Stack]]:
        """Return the stacks on each device; the copies are queued on the lanes."""
        stacks: list[dict[str, Stack]] = [{} for _ in self._lanes]
        targets: dict[str, list[torch.Tensor]] = {}
        for projection in projections:
            tensors: list[dict[str, torch.Tensor]] = [{} for _ in self._lanes]
            for suffix in projection.suffixes():
                infos = [linear.parts[suffix] for linear in projection.linears]
                nbytes = sum(info.nbytes for info in infos)
                flats = [buffers.room(memory, at, (projection.name, suffix), nbytes) for at in range(len(self._lanes))]
                for device_tensors, flat in zip(tensors, flats, strict=True):
                    device_tensors[suffix] = _shaped(flat, infos)
                rows = [flat.view(len(infos), -1) for flat in flats]
                targets |= {info.name: [row[at] for row in rows] for at, info in enumerate(infos)}
            for device_stacks, device_tensors in zip(stacks, tensors, strict=True):
                device_stacks[projection.name] = Stack(projection, device_tensors)
        linears = [linear for projection in projections for linear in projection.linears]
        shapes = {linear.parts[SHAPE].name: linear for linear in linears if SHAPE in linear.parts}
        needed = [info for linear in linears for info in linear.parts.values()
                  if info.name in targets or info.name in shapes]  # fmt: skip
        self._fetch(needed, targets, shapes)
        return stacks

    def _fetch(
        self, infos: list[TensorInfo], targets: Mapping[str, list[torch.Tensor]], shapes: Mapping[str, StoredLinear]
    ) -> None:
        waiting: deque[_Batch] = deque()
        try:
            for part in _in_batches(infos, self._slots.nbytes):
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
        for shard, begin, end in _contiguous_ranges(infos):
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


def _in_batches(infos: Iterable[TensorInfo], nbytes: int) -> Iterator[list[TensorInfo]]:
    """Yield the tensors in file order, in batches of at most `nbytes`."""
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


def _contiguous_ranges(infos: Iterable[TensorInfo]) -> list[tuple[str, int, int]]:
    """Return the contiguous file ranges (shard, begin, end) of tensors in file order."""
    ranges: list[tuple[str, int, int]] = []
    for info in infos:
        if ranges and ranges[-1][0] == info.shard and ranges[-1][2] == info.begin:
            ranges[-1] = (info.shard, ranges[-1][1], info.end)
        else:
            ranges.append((info.shard, info.begin, info.end))
    return ranges


def _check_shape(linear: StoredLinear, values: NDArray[Any]) -> None:
    shape = [int(value) for value in values]
    if shape != [*linear.shape]:
        what = f"weight_shape is {shape}, expected {[*linear.shape]}"
        raise TensorError(what, where=linear.module, fix="check the source file")


def _shaped(flat: torch.Tensor, infos: list[TensorInfo]) -> torch.Tensor:
    shape = infos[0].shape if infos[0].shape != (1,) else ()
    return flat.view(_DTYPES[infos[0].dtype]).view(len(infos), *shape)


def to_bf16(stack: Stack) -> torch.Tensor:
    """Return the BF16 weights of a stack or of a slice of one, [E, N, K]."""
    gpu = FORMATS[stack.of.format].gpu
    assert gpu is not None  # `projections` stacks no other formats
    return gpu.codec().decode(stack.tensors)


class Experts:
    """Returns the decoded experts of a layer to the forward pass, one at a time."""

    def __init__(self, stacks: dict[str, Stack], lane: Lane) -> None:
        self._stacks = [stacks[name] for name in PROJECTIONS]
        self._at, self._lane = self._stacks[0].of.positions(), lane
        self.attention_end: Mark | None = None  # set when the first expert is requested

    def __call__(self, number: int) -> ExpertWeights:
        """Return the decoded matrices of an expert."""
        if self.attention_end is None:
            self.attention_end = self._lane.mark()
        at = self._at[number]
        gate, up, down = (to_bf16(stack.part(at, at + 1))[0] for stack in self._stacks)
        return gate, up, down


class StoredExperts:
    """Loads a checkpoint's experts, a layer at a time, for `compare`. A context manager that stops its threads.

    Memory is allocated per layer and freed with the last reference to an expert. Layers have the same size, so the next
    one reuses the memory. Experts that cannot be stacked, because their formats differ, are decoded on the host one by
    one. Not thread-safe.
    """

    def __init__(
        self,
        linears: Iterable[StoredLinear],
        reader: Reader,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._weights, self._dtype, self._device = weights, dtype, device
        routed: dict[int, list[StoredLinear]] = {}
        for linear in linears:
            if linear.role == ROUTED and linear.layer is not None:
                routed.setdefault(linear.layer, []).append(linear)
        self._stacks: dict[int, list[Projection]] = {layer: projections(members) for layer, members in routed.items()}
        self.nbytes = max((sum(stack.nbytes for stack in stacks) for stacks in self._stacks.values()), default=0)
        largest = max((linear.parts[suffix].nbytes for stacks in self._stacks.values() for stack in stacks
                       for linear in stack.linears for suffix in stack.suffixes()), default=1)  # fmt: skip
        slot = max(largest, SLOT_NBYTES if device.type == "cuda" else 1)
        self._lane = Lane(device)
        self._loader = Loader(reader, Slots(_STORED_SLOTS, device, slot), [self._lane], _STORED_READERS, Clock())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loader.close()

    def __call__(self, layer: int) -> Expert:
        """Load a layer, and return a function that decodes one of its experts."""
        layer_stacks = self._stacks.get(layer)
        if not layer_stacks:
            return self._weights.experts(layer, str(self._device))
        with self._lane:  # allocate in the lane that writes the memory
            buffers = Buffers(0, [self._device])
            (loaded,) = self._loader.load(layer_stacks, buffers, buffers.fresh())
            stacks = self._prepared(loaded)
            del loaded
        self._lane.mark().wait()
        at = stacks[PROJECTIONS[0]].of.positions()

        def expert(number: int) -> ExpertWeights:
            where = at[number]
            parts = [stacks[name].part(where, where + 1) for name in PROJECTIONS]
            with current_lane(self._device):
                gate, up, down = (to_bf16(part)[0].to(self._dtype) for part in parts)
            return gate, up, down

        return expert

    def _prepared(self, stacks: Mapping[str, Stack]) -> Mapping[str, Stack]:
        """Return the stacks to decode experts from."""
        return stacks
