"""Copy encoded experts to the host through pinned slots, and pass them to the writer threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.engine.activation_scales import fixed_scales
from halfbyte.engine.backends.cuda.devices import DeviceState
from halfbyte.engine.backends.cuda.encode import EncodedStack
from halfbyte.engine.backends.cuda.pinned_buffers import Slot, Slots
from halfbyte.engine.backends.cuda.streams import Mark
from halfbyte.engine.backends.cuda.timing import Clock
from halfbyte.engine.jobs import JobInputs, as_bytes
from halfbyte.engine.runner import Countdown, EncodedSpan, Runner
from halfbyte.plan.rules import Job
from halfbyte.recipe.decisions import Quantize


class _Sent(NamedTuple):
    """Experts that are being copied to the host."""

    encoded: list[EncodedStack]
    slot: Slot
    spans: list[tuple[int, list[TensorInfo]]]  # offset in the slot, and adjacent tensors
    sums: list[torch.Tensor]
    copied: Mark


class CopyBack:
    """Copies encoded experts to the host; `writing` collects the futures of the writer threads."""

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        group: int,
        quantize: Quantize | None,
        writing: deque[Future[None]],
        clock: Clock,
    ) -> None:
        self._runner, self._slots, self._group, self._quantize = runner, slots, group, quantize
        self._writing, self._clock = writing, clock

    def write(
        self,
        state: DeviceState,
        encoded: Iterable[list[EncodedStack]],
        jobs: Sequence[Job],
        inputs_of: Callable[[Job], JobInputs],
    ) -> None:
        """Copy encoded experts to the host, one slot at a time, and pass them to the writer threads."""
        by_expert: dict[str, list[Job]] = {}
        for job in jobs:
            by_expert.setdefault(_expert_of(job.linears[0].module), []).append(job)
        ready: deque[_Sent] = deque()
        for part in encoded:
            for begin in range(0, part[0].count, self._group):
                group = [stack.part(begin, min(begin + self._group, stack.count)) for stack in part]
                group_jobs = [job for name in group[0].experts() for job in by_expert.get(name, [])]
                if group_jobs:
                    ready.append(self._send_back(state, group, group_jobs, inputs_of))
                while len(ready) > 1:
                    self._hand_over(ready.popleft())
        while ready:
            self._hand_over(ready.popleft())

    def _send_back(
        self,
        state: DeviceState,
        encoded: list[EncodedStack],
        jobs: Sequence[Job],
        inputs_of: Callable[[Job], JobInputs],
    ) -> _Sent:
        """Start copying experts to the host, in file order."""
        assert self._quantize is not None
        format = self._quantize.format
        tensors = {name: tensor for stack in encoded for name, tensor in stack.tensors(format).items()}
        scalars = {name: array for job in jobs for name, array in inputs_of(job).tensors.items()}
        scalars |= {name: array for job in jobs for name, array in fixed_scales(job, self._quantize).items()}
        scalars |= {name: array for stack in encoded for name, array in stack.scalars(format).items()}
        names = (spec.name for job in jobs for spec in job.outputs)
        targets = [info for name in names if (info := self._runner.place(name)) is not None]
        with self._clock("waiting for a writer"):
            slot = self._slots.take()
        spans: list[tuple[int, list[TensorInfo]]] = []
        at = 0
        with state.download:
            begin = state.download.mark()
            for info in sorted(targets, key=lambda info: (info.shard, info.begin)):
                last = spans[-1][1][-1] if spans else None
                if last is None or (last.shard, last.end) != (info.shard, info.begin):
                    spans.append((at, []))
                spans[-1][1].append(info)
                target = slot.memory[at : at + info.nbytes]
                if info.name in tensors:
                    target.copy_(tensors[info.name], non_blocking=True)
                else:
                    target.copy_(torch.frombuffer(as_bytes(scalars[info.name]), dtype=torch.uint8))
                at += info.nbytes
            sums = [stack.quality.to("cpu", non_blocking=True) for stack in encoded]
            copied = state.download.mark()
        self._clock.between("to the host", begin, copied, at)
        return _Sent(encoded, slot, spans, sums, copied)

    def _hand_over(self, sent: _Sent) -> None:
        """Pass copied experts to the writer threads; the slot is released after the last write."""
        sent.copied.wait()
        errors = {module: quality for stack, sums in zip(sent.encoded, sent.sums, strict=True)
                  for module, quality in stack.errors(sums).items()}  # fmt: skip
        memory = sent.slot.memory.numpy()
        futures: list[Future[None]] = []
        for at, places in sent.spans:
            nbytes = places[-1].end - places[0].begin
            futures += self._runner.put(EncodedSpan(places, memory[at : at + nbytes].data, errors))
        slot = sent.slot  # the callback must not hold `sent`, which would keep tensors on the device until written
        when_done(futures, lambda: self._slots.give_back(slot))
        self._writing.extend(futures)


def _expert_of(module: str) -> str:
    return module.rpartition(".")[0]


def when_done(futures: Sequence[Future[None]], callback: Callable[[], None]) -> None:
    """Call `callback` once, when all futures are done or failed."""
    if not futures:
        callback()
        return
    countdown = Countdown(len(futures), callback)
    for future in futures:
        future.add_done_callback(lambda _: countdown.decrement())
