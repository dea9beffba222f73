"""The way back: encoded experts are copied to the host, a slot at a time, and handed to the threads that write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch

from halfbyte.cuda.clock import Clock
from halfbyte.cuda.encode import Made
from halfbyte.cuda.lanes import Mark
from halfbyte.cuda.places import Place
from halfbyte.cuda.slots import Slot, Slots
from halfbyte.plan.rules import Job
from halfbyte.run import Countdown, Runner, Stretch
from halfbyte.source.headers import TensorInfo
from halfbyte.transform.apply import Given, as_bytes


class _Sent(NamedTuple):
    """Some experts on their way to the host."""

    made: list[Made]
    slot: Slot
    stretches: list[tuple[int, list[TensorInfo]]]  # where in the slot, and the tensors from there on
    sums: list[torch.Tensor]
    back: Mark


class Back:
    """Copies and hands over; `writing` gets what the threads are at, for whoever waits for them."""

    def __init__(
        self, runner: Runner, slots: Slots, group: int, format: str, writing: deque[Future[None]], clock: Clock
    ) -> None:
        self._runner, self._slots, self._group, self._format = runner, slots, group, format
        self._writing, self._clock = writing, clock

    def write(
        self, place: Place, made: Iterable[list[Made]], jobs: Sequence[Job], given: Callable[[Job], Given]
    ) -> None:
        """Copy what was made to the host, a slot at a time, and hand it to the threads that write."""
        by_expert: dict[str, list[Job]] = {}
        for job in jobs:
            by_expert.setdefault(_expert_of(job.linears[0].module), []).append(job)
        ready: deque[_Sent] = deque()
        for part in made:
            for begin in range(0, part[0].count, self._group):
                some = [one.some(begin, min(begin + self._group, one.count)) for one in part]
                theirs = [job for name in some[0].experts() for job in by_expert.get(name, [])]
                if theirs:
                    ready.append(self._send_back(place, some, theirs, given))
                while len(ready) > 1:
                    self._hand_over(ready.popleft())
        while ready:
            self._hand_over(ready.popleft())

    def _send_back(self, place: Place, made: list[Made], jobs: Sequence[Job], given: Callable[[Job], Given]) -> _Sent:
        """Copy some experts to the host, into the order of the files."""
        tensors = {name: tensor for one in made for name, tensor in one.tensors(self._format).items()}
        scalars = {name: array for job in jobs for name, array in given(job).tensors.items()}
        scalars |= {name: array for one in made for name, array in one.scalars(self._format).items()}
        names = (spec.name for job in jobs for spec in job.outputs)
        targets = [info for name in names if (info := self._runner.place(name)) is not None]
        with self._clock("waiting for a writer"):
            slot = self._slots.take()
        stretches: list[tuple[int, list[TensorInfo]]] = []
        at = 0
        with place.going:
            begin = place.going.mark()
            for info in sorted(targets, key=lambda info: (info.shard, info.begin)):
                last = stretches[-1][1][-1] if stretches else None
                if last is None or (last.shard, last.end) != (info.shard, info.begin):
                    stretches.append((at, []))
                stretches[-1][1].append(info)
                target = slot.memory[at : at + info.nbytes]
                if info.name in tensors:
                    target.copy_(tensors[info.name], non_blocking=True)
                else:
                    target.copy_(torch.frombuffer(as_bytes(scalars[info.name]), dtype=torch.uint8))
                at += info.nbytes
            sums = [one.quality.to("cpu", non_blocking=True) for one in made]
            back = place.going.mark()
        self._clock.between("to the host", begin, back, at)
        return _Sent(made, slot, stretches, sums, back)

    def _hand_over(self, sent: _Sent) -> None:
        """Hand some experts to the threads that write; the slot is free when the last of them has."""
        sent.back.wait()
        costs = {module: cost for one, sums in zip(sent.made, sent.sums, strict=True)
                 for module, cost in one.costs(sums).items()}  # fmt: skip
        memory = sent.slot.memory.numpy()
        futures: list[Future[None]] = []
        for at, places in sent.stretches:
            nbytes = places[-1].end - places[0].begin
            futures += self._runner.put(Stretch(places, memory[at : at + nbytes].data, costs))
        slot = sent.slot  # and nothing else of it, or what was made would stay on the device until it is written
        when_done(futures, lambda: self._slots.give_back(slot))
        self._writing.extend(futures)


def _expert_of(module: str) -> str:
    return module.rpartition(".")[0]


def when_done(futures: Sequence[Future[None]], then: Callable[[], None]) -> None:
    """Call once, when the last of the futures is done, however it ended."""
    if not futures:
        then()
        return
    countdown = Countdown(len(futures), then)
    for future in futures:
        future.add_done_callback(lambda _: countdown.one_less())
