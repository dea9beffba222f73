"""The loop: the next layer comes while this one runs and the last one is encoded, copied back and written.

Three threads, each with a lane of the device: `_come` reads a layer and copies it over, the caller runs it on the
calibration tokens and encodes it, `_go` copies it back and hands it to the threads that write. Encoding is a fiftieth
of a layer's time, so it has no lane of its own, in which it would only wait for its turn. Where memory is short
(`memory.LEAN`), `_go` also encodes, some experts at a time, and the next layer comes when that is done.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from halfbyte.calibrate.layers import tensors_by_layer
from halfbyte.calibrate.stats import LayerStats
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.cuda.clock import Clock
from halfbyte.cuda.decode import Experts
from halfbyte.cuda.encode import LayerEncoder, Made
from halfbyte.cuda.forward import DeviceStream
from halfbyte.cuda.lanes import Lane, Mark
from halfbyte.cuda.memory import Mode, group_of
from halfbyte.cuda.observe import DeviceObserver
from halfbyte.cuda.projections import ENCODED, stacks_by_layer
from halfbyte.cuda.slots import Slot, Slots, slot_nbytes
from halfbyte.cuda.stacks import Buffers, Loader, Stack
from halfbyte.forward.layer import DecoderLayer
from halfbyte.forward.weights import Weights
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job, method_of
from halfbyte.run import Countdown, Runner, Stretch
from halfbyte.source.headers import TensorInfo
from halfbyte.transform.apply import Given, as_bytes

IN_SLOTS, OUT_SLOTS = 4, 4
READERS = 8
KEEP_SECONDS = 60.0  # between two copies of the hidden states on the disk: what a kill costs at most, and a layer
_SWITCH_SECONDS = 1e-3  # the thread that sends work to the device must not wait long for the interpreter
GivenOf = Callable[[LayerStats | None], Callable[[Job], Given]]


@dataclass(eq=False)
class _Staged:
    """A layer on the device."""

    index: int
    stacks: dict[str, Stack]
    memory: dict[tuple[str, str], torch.Tensor]
    decoder: DecoderLayer | None
    there: Mark

    @cached_property
    def modules(self) -> set[str]:
        """Return what its stacks hold."""
        return {linear.module for stack in self.stacks.values() for linear in stack.of.linears}


class _Output(NamedTuple):
    """A layer's experts in the output's format: already made, or to be made from what the encoder knows."""

    encoder: LayerEncoder
    made: list[list[Made]]


class _Sent(NamedTuple):
    """Some experts on their way to the host."""

    made: list[Made]
    slot: Slot
    stretches: list[tuple[int, list[TensorInfo]]]  # where in the slot, and the tensors from there on
    sums: list[torch.Tensor]
    back: Mark


class DevicePass:
    """A run of a plan on one device."""

    def __init__(  # noqa: PLR0913 - keyword-only, but for what a pass cannot be without
        self,
        plan: Plan,
        runner: Runner,
        device: torch.device,
        *,
        mode: Mode,
        layers: int,
        calibration: Calibration | None = None,
        store: Store | None = None,
        given_of: GivenOf,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._runner, self._device, self._layers, self.mode = plan, runner, device, layers, mode
        self._calibration, self._store, self._given_of, self._say = calibration, store, given_of, say
        self.clock = Clock()
        self._weights = Weights(plan.model, runner.reader)
        self._held = tensors_by_layer(plan.model)
        self._stackable = stacks_by_layer(plan, layers, forward=calibration is not None)
        self._jobs: dict[int | None, list[Job]] = {}
        for job in runner.pending():
            self._jobs.setdefault(job.layer, []).append(job)
        self._coming, self._running, self._going = Lane(device), Lane(device), Lane(device)
        self._buffers = Buffers(mode.layers, device)
        largest = max((linear.parts[s].nbytes for found in self._stackable for one in found for linear in one.linears
                       for s in one.suffixes()), default=1)  # fmt: skip
        self._loader = Loader(
            runner.reader, Slots(IN_SLOTS, device, max(largest, slot_nbytes(device))), self._coming, READERS, self.clock
        )
        self._group, nbytes = group_of(self._stackable, slot_nbytes(device))
        self._format = plan.recipe.quantize.format if plan.recipe.quantize is not None else ""
        self._out = Slots(OUT_SLOTS, device, nbytes)
        self._writing: deque[Future[None]] = deque()
        self.measured: dict[int, LayerStats] = {}
        self._kept = time.monotonic()
        self._one_output = threading.Semaphore(1)

    def run(self, forward_from: int = 0, hidden: torch.Tensor | None = None) -> dict[int, LayerStats]:
        """Do every layer, then what is in no layer; return what was measured.

        Layers before `forward_from` are in `measured` already; they are only written, where that is still to be done.
        """
        stream = None
        todo = [at for at in range(self._layers) if self._forwards(at, forward_from) or at in self._jobs]
        if self._calibration is not None and forward_from < self._layers:
            offloads = self.mode.offloads
            stream = DeviceStream(self._calibration, self._device, self._running, self.clock, offloads=offloads)
            stream.start(self._weights) if hidden is None else stream.go_on(hidden)
        going: deque[Future[None]] = deque()
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind, self._nobody_waits():
                next_ones = [*((at, self._forwards(at, forward_from)) for at in todo), None]
                coming = ahead.submit(self._come, *next_ones[0]) if next_ones[0] else None
                for following in next_ones[1:]:
                    assert coming is not None
                    with self.clock("waiting for a layer"):
                        staged = coming.result()
                    coming = ahead.submit(self._come, *following) if following else None
                    observer = self._through(stream, staged)
                    output = self._encode(staged)
                    kept = self._kept_hidden(stream) if observer else None
                    going.append(behind.submit(self._go, staged, observer, output, self._running.mark(), kept))
                    while len(going) > 1:
                        going.popleft().result()
                for future in going:
                    future.result()
            self._writing.extend(self._runner.start(self._jobs.get(None, []), self._given_of(None)))
            self._settle(all_of_them=True)
        finally:
            sys.setswitchinterval(before)
            self._loader.close()
        return self.measured

    @contextmanager
    def _nobody_waits(self) -> Generator[None]:
        """Wake the threads up after an error or Ctrl-C, so that they can end: what they wait for will not come."""
        try:
            yield
        except BaseException:
            self._buffers.close()
            raise

    def _forwards(self, layer: int, forward_from: int) -> bool:
        return self._calibration is not None and layer >= forward_from

    def _come(self, layer: int, forward: bool) -> _Staged:
        """Read a layer and copy it over; on the first thread."""
        memory = self._buffers.take()
        try:
            self._writing.extend(self._runner.open_ahead(self._jobs.get(layer, [])))
            found = self._stackable[layer]
            in_stacks = {info.name for one in found for linear in one.linears for info in linear.parts.values()}
            self._runner.reader.hold(info for info in self._held[layer] if info.name not in in_stacks)
            stacks = self._loader.load(found, self._buffers, memory)
            decoder = None
            if forward:
                assert self._calibration is not None
                with self._coming:
                    decoder = DecoderLayer(self._calibration.text, layer, self._weights, DTYPE, str(self._device))
            there = self._coming.mark()
            there.wait()  # page-locked memory and decoder weights must not be given up before they are copied
            return _Staged(layer, stacks, memory, decoder, there)
        except BaseException:
            self._buffers.give_back(memory)
            raise

    def _through(self, stream: DeviceStream | None, staged: _Staged) -> DeviceObserver | None:
        if stream is None or staged.decoder is None:
            return None
        self._running.follow(staged.there)
        experts = Experts(staged.stacks, self._running) if staged.stacks else None
        if experts is None and staged.decoder.is_moe:
            assert self._calibration is not None
            return stream.through(
                staged.decoder, self._weights.experts(self._calibration.text, staged.index, str(self._device))
            )
        return stream.through(staged.decoder, experts)

    def _kept_hidden(self, stream: DeviceStream | None) -> torch.Tensor | None:
        """Return a copy of the hidden states, once in a while."""
        if stream is None or time.monotonic() - self._kept < KEEP_SECONDS:
            return None
        self._kept = time.monotonic()
        with self.clock("keep"):
            return stream.kept()

    def _encode(self, staged: _Staged) -> _Output | None:
        """Encode a layer's stacks, in parts; they leave the device before those of the next layer are made."""
        quantize = self._plan.recipe.quantize
        jobs = [job for job in self._jobs.get(staged.index, []) if self._is_encoded_here(job, staged)]
        if quantize is None or not jobs:
            return None
        with self.clock("waiting for the host"):
            self._one_output.acquire()
        self._running.follow(staged.there)
        with self._running:
            begin = self._running.mark()
            encoder = LayerEncoder(staged.stacks, quantize.format, method_of(ROUTED, quantize), self._group)
            made = [] if self.mode.grouped else encoder.parts()
            self.clock.between("encode", begin, self._running.mark())
        return _Output(encoder, made)

    def _go(
        self,
        staged: _Staged,
        observer: DeviceObserver | None,
        output: _Output | None,
        done: Mark,
        hidden: torch.Tensor | None,
    ) -> None:
        """Measure and write a layer; on the last thread."""
        with ExitStack() as at_the_end:
            if output is not None:
                at_the_end.callback(self._one_output.release)
                at_the_end.callback(output.made.clear)  # whoever else holds it must not hold the next layer's memory
            stored = at_the_end.enter_context(ExitStack())
            stored.callback(self._buffers.give_back, staged.memory)
            done.wait()
            staged.decoder = None
            if not self.mode.grouped:
                stored.close()  # the next layer may come: this one is encoded
            given = self._given_of(self._stats(staged.index, observer, hidden))
            jobs = self._jobs.get(staged.index, [])
            here = [job for job in jobs if self._is_encoded_here(job, staged)]
            names = {job.name for job in here}
            others = self._runner.start([job for job in jobs if job.name not in names], given)
            self._writing.extend(others)
            self._release(others, self._held[staged.index])
            if output is not None:
                self._write(self._groups(output.encoder) if self.mode.grouped else output.made, here, given)
        self._settle()

    def _groups(self, encoder: LayerEncoder) -> Iterator[list[Made]]:
        """Encode some experts after the other, in the lane that copies them back."""
        groups = encoder.groups()
        while True:
            with self._going:
                begin = self._going.mark()
                made = next(groups, None)
                end = self._going.mark()
            self.clock.between("encode", begin, end)
            if made is None:
                end.wait()  # from here on others may have what was read
                return
            yield made
            del made  # or it would be there while the next is made

    def _stats(self, layer: int, observer: DeviceObserver | None, hidden: torch.Tensor | None) -> LayerStats | None:
        if observer is None:
            return self.measured.get(layer)
        with self.clock("statistics"), self._going:
            stats = observer.finish()
        self.measured[layer] = stats
        self._runner.reader.refuse_changes()
        if self._store is not None:
            self._store.save(layer, stats)
            if hidden is not None:
                with self.clock("keep"):
                    self._store.save_hidden(layer + 1, hidden)
        self._say(f"measured layer {layer} of {self._layers}")
        return stats

    def _is_encoded_here(self, job: Job, staged: _Staged) -> bool:
        quantize = self._plan.recipe.quantize
        if quantize is None or job.action != ENCODE or not job.linears:
            return False
        known = (quantize.format, method_of(job.role, quantize)) in ENCODED
        return known and all(linear.module in staged.modules for linear in job.linears)

    def _write(self, made: Iterable[list[Made]], jobs: Sequence[Job], given: Callable[[Job], Given]) -> None:
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
                    ready.append(self._send_back(some, theirs, given))
                while len(ready) > 1:
                    self._hand_over(ready.popleft())
        while ready:
            self._hand_over(ready.popleft())

    def _send_back(self, made: list[Made], jobs: Sequence[Job], given: Callable[[Job], Given]) -> _Sent:
        """Copy some experts to the host, into the order of the files."""
        tensors = {name: tensor for one in made for name, tensor in one.tensors(self._format).items()}
        scalars = {name: array for job in jobs for name, array in given(job).tensors.items()}
        scalars |= {name: array for one in made for name, array in one.scalars(self._format).items()}
        names = (spec.name for job in jobs for spec in job.outputs)
        places = [place for name in names if (place := self._runner.place(name)) is not None]
        with self.clock("waiting for a writer"):
            slot = self._out.take()
        stretches: list[tuple[int, list[TensorInfo]]] = []
        at = 0
        with self._going:
            begin = self._going.mark()
            for place in sorted(places, key=lambda place: (place.shard, place.begin)):
                last = stretches[-1][1][-1] if stretches else None
                if last is None or (last.shard, last.end) != (place.shard, place.begin):
                    stretches.append((at, []))
                stretches[-1][1].append(place)
                target = slot.memory[at : at + place.nbytes]
                if place.name in tensors:
                    target.copy_(tensors[place.name], non_blocking=True)
                else:
                    target.copy_(torch.frombuffer(as_bytes(scalars[place.name]), dtype=torch.uint8))
                at += place.nbytes
            sums = [one.quality.to("cpu", non_blocking=True) for one in made]
            back = self._going.mark()
        self.clock.between("to the host", begin, back, at)
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
        _when_done(futures, lambda: self._out.give_back(slot))
        self._writing.extend(futures)

    def _release(self, futures: list[Future[None]], infos: Iterable[TensorInfo]) -> None:
        """Forget what was held for a layer as soon as nothing reads it any more."""
        held = list(infos)
        _when_done(futures, lambda: self._runner.reader.release(held))

    def _settle(self, *, all_of_them: bool = False) -> None:
        """Raise what went wrong in a thread that writes; wait for all of them at the end."""
        while self._writing and (all_of_them or self._writing[0].done()):
            self._writing.popleft().result()
        if all_of_them:
            self._runner.settle()


def _expert_of(module: str) -> str:
    return module.rpartition(".")[0]


def _when_done(futures: Sequence[Future[None]], then: Callable[[], None]) -> None:
    """Call once, when the last of the futures is done, however it ended."""
    if not futures:
        then()
        return
    countdown = Countdown(len(futures), then)
    for future in futures:
        future.add_done_callback(lambda _: countdown.one_less())
