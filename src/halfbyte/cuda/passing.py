"""The loop: the next layer comes while this one runs and the last one is encoded, copied back and written.

Three threads, each with a lane of the device: `_come` reads a layer and copies it over, the caller runs it on the
calibration tokens and encodes it, `_go` copies it back and hands it to the threads that write. Encoding is a fiftieth
of a layer's time, so it has no lane of its own, in which it would only wait for its turn. Where memory is short
(`memory.LEAN`), `_go` also encodes, some experts at a time, and the next layer comes when that is done.

On several devices (`places.py`) every layer comes to each of them. Each runs its own rows and encodes its own experts;
what they measured is added in the order of the rows, and what they made is copied back in the order of the files.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from halfbyte.calibrate.layers import tensors_by_layer
from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.cuda.back import Back, when_done
from halfbyte.cuda.clock import Clock
from halfbyte.cuda.decode import Experts
from halfbyte.cuda.encode import LayerEncoder, Made
from halfbyte.cuda.forward import DeviceStream, first_hidden
from halfbyte.cuda.lanes import Mark
from halfbyte.cuda.memory import Mode, group_of
from halfbyte.cuda.observe import DeviceObserver
from halfbyte.cuda.places import Place, Places
from halfbyte.cuda.projections import ENCODED, stacks_by_layer
from halfbyte.cuda.shares import expert_shares, row_shares, some_rows
from halfbyte.cuda.slots import Slots, slot_nbytes
from halfbyte.cuda.stacks import Buffers, Loader, Memory, Stack
from halfbyte.forward.layer import DecoderLayer
from halfbyte.forward.weights import Weights
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job, method_of
from halfbyte.run import Runner
from halfbyte.source.headers import TensorInfo
from halfbyte.transform.apply import Given

IN_SLOTS, OUT_SLOTS = 4, 4
READERS = 8
KEEP_SECONDS = 60.0  # between two copies of the hidden states on the disk: what a kill costs at most, and a layer
_SWITCH_SECONDS = 1e-3  # the thread that sends work to the device must not wait long for the interpreter
GivenOf = Callable[[LayerStats | None], Callable[[Job], Given]]


@dataclass(eq=False)
class _Here:
    """A layer on one device."""

    stacks: dict[str, Stack]
    decoder: DecoderLayer | None
    there: Mark


@dataclass(eq=False)
class _Staged:
    """A layer on every device."""

    index: int
    here: list[_Here]
    memory: Memory

    @cached_property
    def modules(self) -> set[str]:
        """Return what its stacks hold."""
        return {linear.module for stack in self.here[0].stacks.values() for linear in stack.of.linears}

    def experts(self) -> int:
        """Return how many experts its stacks hold."""
        return max((len(stack.of.linears) for stack in self.here[0].stacks.values()), default=0)


class _Output(NamedTuple):
    """A device's experts in the output's format: already made, or to be made from what the encoder knows."""

    place: Place
    encoder: LayerEncoder
    made: list[list[Made]]


class DevicePass:
    """A run of a plan, on one device or on several."""

    def __init__(  # noqa: PLR0913 - keyword-only, but for what a pass cannot be without
        self,
        plan: Plan,
        runner: Runner,
        devices: Sequence[torch.device],
        *,
        mode: Mode,
        layers: int,
        calibration: Calibration | None = None,
        store: Store | None = None,
        given_of: GivenOf,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._runner, self._layers, self.mode = plan, runner, layers, mode
        self._calibration, self._store, self._given_of, self._say = calibration, store, given_of, say
        self.clock = Clock()
        self._weights = Weights(plan.model, runner.reader)
        self._held = tensors_by_layer(plan.model)
        self._stackable = stacks_by_layer(plan, layers, forward=calibration is not None)
        self._jobs: dict[int | None, list[Job]] = {}
        for job in runner.pending():
            self._jobs.setdefault(job.layer, []).append(job)
        self._places, device = Places(devices), devices[0]
        self._buffers = Buffers(mode.layers, devices)
        largest = max((linear.parts[s].nbytes for found in self._stackable for one in found for linear in one.linears
                       for s in one.suffixes()), default=1)  # fmt: skip
        slots = Slots(IN_SLOTS, device, max(largest, slot_nbytes(device)))
        self._loader = Loader(runner.reader, slots, [place.coming for place in self._places], READERS, self.clock)
        self._writing: deque[Future[None]] = deque()
        self._group, nbytes = group_of(self._stackable, slot_nbytes(device))
        form = plan.recipe.quantize.format if plan.recipe.quantize is not None else ""
        self._back = Back(runner, Slots(OUT_SLOTS, device, nbytes), self._group, form, self._writing, self.clock)
        self.measured: dict[int, LayerStats] = {}
        self._kept = time.monotonic()
        self._one_output = threading.Semaphore(1)

    def run(self, forward_from: int = 0, hidden: torch.Tensor | None = None) -> dict[int, LayerStats]:
        """Do every layer, then what is in no layer; return what was measured.

        Layers before `forward_from` are in `measured` already; they are only written, where that is still to be done.
        """
        todo = [at for at in range(self._layers) if self._forwards(at, forward_from) or at in self._jobs]
        if self._calibration is not None and forward_from < self._layers:
            self._begin(self._calibration, hidden)
        going: deque[Future[None]] = deque()
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(1) as behind, self._places, self._nobody_waits():
                next_ones = [*((at, self._forwards(at, forward_from)) for at in todo), None]
                coming = ahead.submit(self._come, *next_ones[0]) if next_ones[0] else None
                for following in next_ones[1:]:
                    assert coming is not None
                    with self.clock("waiting for a layer"):
                        staged = coming.result()
                    coming = ahead.submit(self._come, *following) if following else None
                    observers = self._through(staged)
                    outputs = self._encode(staged)
                    kept = self._kept_hidden() if observers else None
                    done = [place.running.mark() for place in self._places]
                    going.append(behind.submit(self._go, staged, observers, outputs, done, kept))
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

    def _begin(self, calibration: Calibration, hidden: torch.Tensor | None) -> None:
        """Give each device its rows, as they were kept, or before the first layer."""
        if hidden is None:
            hidden = first_hidden(calibration, self._weights)
        shares = row_shares(len(calibration.rows.tokens), len(self._places))
        for place, share in zip(self._places, shares, strict=True):
            part = replace(calibration, rows=some_rows(calibration.rows, share))
            place.stream = DeviceStream(part, place.device, place.running, self.clock, offloads=self.mode.offloads)
            place.stream.begin(hidden[share])

    @contextmanager
    def _nobody_waits(self) -> Generator[None]:
        """Wake the threads up after an error or Ctrl-C, so that they can end: what they wait for will not come."""
        try:
            with self._runner.reader.nobody_waits():
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
            here: list[_Here] = []
            for place, its_stacks in zip(self._places, stacks, strict=True):
                decoder = None
                if forward:
                    assert self._calibration is not None
                    with place.coming:
                        decoder = DecoderLayer(self._calibration.text, layer, self._weights, DTYPE, str(place.device))
                here.append(_Here(its_stacks, decoder, place.coming.mark()))
            for one in here:
                one.there.wait()  # page-locked memory and decoder weights must not be given up before they are copied
            return _Staged(layer, here, memory)
        except BaseException:
            self._buffers.give_back(memory)
            raise

    def _through(self, staged: _Staged) -> list[DeviceObserver]:
        """Run a layer on all devices; return what has seen it there, in the order of the rows."""
        if any(one.decoder is None for one in staged.here):
            return []
        return self._places.each(lambda place, here: self._through_here(place, here, staged.index), staged.here)

    def _through_here(self, place: Place, here: _Here, layer: int) -> DeviceObserver:
        assert place.stream is not None
        assert here.decoder is not None
        place.running.follow(here.there)
        experts = Experts(here.stacks, place.running) if here.stacks else None
        if experts is None and here.decoder.is_moe:
            assert self._calibration is not None
            stored = self._weights.experts(self._calibration.text, layer, str(place.device))
            return place.stream.through(here.decoder, stored)
        return place.stream.through(here.decoder, experts)

    def _kept_hidden(self) -> torch.Tensor | None:
        """Return a copy of the hidden states of all rows, once in a while."""
        if time.monotonic() - self._kept < KEEP_SECONDS:
            return None
        self._kept = time.monotonic()
        with self.clock("keep"):
            parts = [place.stream.kept() for place in self._places if place.stream is not None]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, staged: _Staged) -> list[_Output]:
        """Encode a layer's stacks, in parts; they leave the devices before those of the next layer are made."""
        quantize = self._plan.recipe.quantize
        jobs = [job for job in self._jobs.get(staged.index, []) if self._is_encoded_here(job, staged)]
        if quantize is None or not jobs:
            return []
        with self.clock("waiting for the host"):
            self._one_output.acquire()

        def encode(place: Place, given: tuple[_Here, slice]) -> _Output | None:
            here, share = given
            if share.start == share.stop:
                return None  # more devices than experts
            place.running.follow(here.there)
            stacks = {name: stack.part(share.start, share.stop) for name, stack in here.stacks.items()}
            with place.running:
                begin = place.running.mark()
                encoder = LayerEncoder(stacks, quantize.format, method_of(ROUTED, quantize), self._group)
                made = [] if self.mode.grouped else encoder.parts()
                self.clock.between("encode", begin, place.running.mark())
            return _Output(place, encoder, made)

        shares = expert_shares(staged.experts(), len(self._places))
        found = self._places.each(encode, list(zip(staged.here, shares, strict=True)))
        return [output for output in found if output is not None]

    def _go(
        self,
        staged: _Staged,
        observers: list[DeviceObserver],
        outputs: list[_Output],
        done: list[Mark],
        hidden: torch.Tensor | None,
    ) -> None:
        """Measure and write a layer; on the last thread."""
        with ExitStack() as at_the_end:
            if outputs:
                at_the_end.callback(self._one_output.release)
            for output in outputs:
                at_the_end.callback(output.made.clear)  # whoever else holds it must not hold the next layer's memory
            stored = at_the_end.enter_context(ExitStack())
            stored.callback(self._buffers.give_back, staged.memory)
            for here, mark in zip(staged.here, done, strict=True):
                mark.wait()
                here.decoder = None
            if not self.mode.grouped:
                stored.close()  # the next layer may come: this one is encoded
            given = self._given_of(self._stats(staged.index, observers, hidden))
            jobs = self._jobs.get(staged.index, [])
            encoded = [job for job in jobs if self._is_encoded_here(job, staged)]
            names = {job.name for job in encoded}
            others = self._runner.start([job for job in jobs if job.name not in names], given)
            self._writing.extend(others)
            self._release(others, self._held[staged.index])
            for output in outputs:
                made = self._groups(output) if self.mode.grouped else output.made
                self._back.write(output.place, made, encoded, given)
        self._settle()

    def _groups(self, output: _Output) -> Iterator[list[Made]]:
        """Encode some experts after the other, in the lane that copies them back."""
        groups, going = output.encoder.groups(), output.place.going
        while True:
            with going:
                begin = going.mark()
                made = next(groups, None)
                end = going.mark()
            self.clock.between("encode", begin, end)
            if made is None:
                end.wait()  # from here on others may have what was read
                return
            yield made
            del made  # or it would be there while the next is made

    def _stats(self, layer: int, observers: list[DeviceObserver], hidden: torch.Tensor | None) -> LayerStats | None:
        if not observers:
            return self.measured.get(layer)
        parts: list[LayerStats] = []
        for place, observer in zip(self._places, observers, strict=True):
            with self.clock("statistics"), place.going:
                parts.append(observer.finish())
        stats = parts[0] if len(parts) == 1 else merge(parts)
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

    def _release(self, futures: list[Future[None]], infos: Iterable[TensorInfo]) -> None:
        """Forget what was held for a layer as soon as nothing reads it any more."""
        held = list(infos)
        when_done(futures, lambda: self._runner.reader.release(held))

    def _settle(self, *, all_of_them: bool = False) -> None:
        """Raise what went wrong in a thread that writes; wait for all of them at the end."""
        while self._writing and (all_of_them or self._writing[0].done()):
            self._writing.popleft().result()
        if all_of_them:
            self._runner.settle()
