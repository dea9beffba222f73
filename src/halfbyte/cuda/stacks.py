"""A layer's routed experts on the device: for each projection and each stored tensor, one tensor of all experts.

Experts stand in the order in which the output's files name them, so that a part of a stack is a part of a file.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from halfbyte.cuda.clock import Clock
from halfbyte.cuda.lanes import Lane
from halfbyte.cuda.slots import Slot, Slots
from halfbyte.errors import TensorError
from halfbyte.models.linears import StoredLinear
from halfbyte.numerics.formats import FORMATS
from halfbyte.source.headers import TensorInfo
from halfbyte.source.read import Reader

FORMATS_IN_STACKS = ("int4", "bf16", "fp8_block", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct")
_SHAPE = "weight_shape"  # a pair of numbers that the headers say already; checked, not copied
_AHEAD = 2  # slots that are being read while one is being copied
_DTYPES = {
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
    "F8_E4M3": torch.uint8,  # bit patterns, as the kernels take them
    "F32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of all experts of a layer, as the checkpoint stores it."""

    name: str  # gate_proj, up_proj or down_proj
    linears: tuple[StoredLinear, ...]  # in the order of the stack

    @property
    def format(self) -> str:
        """Return the format that all of them have."""
        return self.linears[0].format

    @property
    def shape(self) -> tuple[int, int]:
        """Return N and K."""
        return self.linears[0].shape

    def suffixes(self) -> list[str]:
        """Return the tensors that are copied to the device."""
        return [part.suffix for part in FORMATS[self.format].tensors if part.suffix != _SHAPE]

    @property
    def nbytes(self) -> int:
        """Return what the stack takes."""
        return sum(linear.parts[suffix].nbytes for linear in self.linears for suffix in self.suffixes())


def projections(linears: Sequence[StoredLinear]) -> list[Projection]:
    """Return the stacks that a layer's routed experts make; none where they are not all stored alike."""
    by_name: dict[str, list[StoredLinear]] = {}
    for linear in sorted(linears, key=lambda linear: linear.module):
        by_name.setdefault(linear.module.rpartition(".")[2], []).append(linear)
    found = [Projection(name, tuple(members)) for name, members in by_name.items()]
    orders = {tuple(linear.expert for linear in one.linears) for one in found}
    return found if len(orders) == 1 and all(map(_alike, found)) else []


def _alike(one: Projection) -> bool:
    first = one.linears[0]
    stored = first.parts
    return first.format in FORMATS_IN_STACKS and all(
        linear.format == first.format
        and linear.parts.keys() == stored.keys()
        and "bias" not in linear.parts
        and all((info.dtype, info.shape) == (stored[s].dtype, stored[s].shape) for s, info in linear.parts.items())
        and all(info.dtype in _DTYPES for s, info in linear.parts.items() if s in one.suffixes())
        for linear in one.linears
    )


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


class Buffers:
    """Memory on the device for the stacks of some layers; a layer waits until one before it is done with its own."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._device = device
        self._free: queue.SimpleQueue[dict[tuple[str, str], torch.Tensor]] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put({})

    def take(self) -> dict[tuple[str, str], torch.Tensor]:
        """Return the memory of a layer that is done."""
        return self._free.get()

    def give_back(self, memory: dict[tuple[str, str], torch.Tensor]) -> None:
        """Let another layer have it."""
        self._free.put(memory)

    def room(self, memory: dict[tuple[str, str], torch.Tensor], key: tuple[str, str], nbytes: int) -> torch.Tensor:
        """Return `nbytes` of a layer's memory, which it keeps for those after it."""
        if key not in memory or memory[key].numel() != nbytes:
            memory[key] = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return memory[key]


class Loader:
    """Fills stacks from the disk: threads read into slots, the device copies from there."""

    def __init__(self, reader: Reader, slots: Slots, lane: Lane, threads: int, clock: Clock) -> None:
        self._reader, self._slots, self._lane, self._clock = reader, slots, lane, clock
        self._pool = ThreadPoolExecutor(threads)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def load(
        self, found: Sequence[Projection], buffers: Buffers, memory: dict[tuple[str, str], torch.Tensor]
    ) -> dict[str, Stack]:
        """Return the stacks; the lane's work is sent, not done."""
        stacks: dict[str, Stack] = {}
        waiting: deque[tuple[Slot, torch.Tensor, list[Future[None]]]] = deque()
        try:
            for projection in found:
                tensors: dict[str, torch.Tensor] = {}
                for suffix in projection.suffixes():
                    infos = [linear.parts[suffix] for linear in projection.linears]
                    flat = buffers.room(memory, (projection.name, suffix), sum(info.nbytes for info in infos))
                    tensors[suffix] = _shaped(flat, infos)
                    for target, part in self._parts(flat, infos):
                        while len(waiting) > _AHEAD:
                            self._send(*waiting.popleft())
                        waiting.append(self._read(target, part))
                stacks[projection.name] = Stack(projection, tensors)
            while waiting:
                self._send(*waiting.popleft())
        finally:
            for slot, _, futures in waiting:
                for future in futures:
                    future.cancel()
                self._slots.give_back(slot)
        self._check_shapes(found)
        return stacks

    def _parts(self, flat: torch.Tensor, infos: list[TensorInfo]) -> Iterator[tuple[torch.Tensor, list[TensorInfo]]]:
        """Yield as many experts as a slot holds, with where they go."""
        each = infos[0].nbytes
        count = max(1, self._slots.nbytes // each)
        for start in range(0, len(infos), count):
            part = infos[start : start + count]
            yield flat[start * each : (start + len(part)) * each], part

    def _read(self, target: torch.Tensor, infos: list[TensorInfo]) -> tuple[Slot, torch.Tensor, list[Future[None]]]:
        slot = self._slots.take()
        memory, each = slot.memory.numpy(), infos[0].nbytes

        def read(at: int, info: TensorInfo) -> None:
            with self._clock("read", info.nbytes):
                self._reader.read_into(info, memory[at * each : (at + 1) * each])

        return slot, target, [self._pool.submit(read, at, info) for at, info in enumerate(infos)]

    def _send(self, slot: Slot, target: torch.Tensor, futures: list[Future[None]]) -> None:
        for future in futures:
            future.result()
        with self._lane:
            begin = self._lane.mark()
            target.copy_(slot.memory[: target.numel()], non_blocking=True)
            end = self._lane.mark()
        self._clock.between("to the device", begin, end, target.numel())
        self._slots.give_back(slot, end)

    def _check_shapes(self, found: Sequence[Projection]) -> None:
        for linear in (linear for one in found for linear in one.linears if _SHAPE in linear.parts):
            said = [int(number) for number in self._reader.tensor(linear.parts[_SHAPE])]
            if said != [*linear.shape]:
                what = f"weight_shape says {said}, not {[*linear.shape]}"
                raise TensorError(what, where=linear.module, fix="check the source file")


def _shaped(flat: torch.Tensor, infos: list[TensorInfo]) -> torch.Tensor:
    shape = infos[0].shape if infos[0].shape != (1,) else ()
    return flat.view(_DTYPES[infos[0].dtype]).view(len(infos), *shape)


def positions(projection: Projection) -> dict[int, int]:
    """Return where each expert stands in a stack."""
    return {int(linear.expert or 0): at for at, linear in enumerate(projection.linears)}
