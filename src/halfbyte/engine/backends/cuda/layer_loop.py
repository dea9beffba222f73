"""The layer loop of the GPU backend: load the next layer, run and encode the current one, write the previous one.

Three threads each have a lane of the device. `_load` reads a layer and copies it to the device. The caller runs it on
the calibration tokens and encodes it. `_store_layer` copies it back and passes it to the writer threads. Except with
GPTQ, encoding takes a fiftieth of a layer's time, so it shares the compute lane. If memory is short (`placement.LEAN`),
`_store_layer` also encodes, one group of experts at a time, and the next layer is loaded afterwards. If experts are
pruned by the statistics of this run, those of a layer are final before it is encoded, and only kept experts are.

With several devices, a thread per device submits its work, and every layer is loaded on each of them. Each runs its own
rows and encodes its own experts. Statistics are added in row order, and encoded experts are copied back in file order.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from halfbyte.calibrate.layers import tensors_by_layer
from halfbyte.calibrate.stats import LayerStats, merge
from halfbyte.calibrate.store import Store
from halfbyte.calibrate.stream import DTYPE, Calibration
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.engine.backends.cuda.encode import CopyBack, EncodedStack, LayerEncoder, when_done
from halfbyte.engine.backends.cuda.experts import Buffers, Experts, Loader, Memory, Stack
from halfbyte.engine.backends.cuda.forward import DeviceStream, first_hidden
from halfbyte.engine.backends.cuda.observe import DeviceObserver, added_hessians
from halfbyte.engine.backends.cuda.placement import (
    Mode,
    expert_shares,
    group_of,
    has_encoder,
    projections,
    row_shares,
    stacks_by_layer,
)
from halfbyte.engine.backends.cuda.streams import Clock, Lane, Mark, Slots, slot_nbytes
from halfbyte.engine.jobs import JobInputs
from halfbyte.engine.runner import Runner
from halfbyte.families.family import DOWN
from halfbyte.families.linears import StoredLinear
from halfbyte.families.weights import Weights
from halfbyte.forward.model import DecoderLayer
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job

if TYPE_CHECKING:
    from halfbyte.prune.plan_source import LayerByLayer

_IN_SLOTS, _OUT_SLOTS = 4, 4
_READERS = 8
KEEP_SECONDS = 60.0  # between snapshots of the hidden states on disk; a kill costs at most this and one layer
_SWITCH_SECONDS = 1e-3  # the thread that submits work to the device must not wait long for the GIL
_InputsOfStats = Callable[[LayerStats | None], Callable[[Job], JobInputs]]
_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


@dataclass(eq=False)
class _DeviceState:
    """A device with its lanes; `stream` has the hidden states of its rows, if layers run."""

    device: torch.device
    upload: Lane
    compute: Lane
    download: Lane
    stream: DeviceStream | None = None


class _Devices:
    """All devices of a run. A context manager that stops their threads."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._all = [_DeviceState(device, Lane(device), Lane(device), Lane(device)) for device in devices]
        # Always the same thread per device, because cuBLAS allocates a workspace for every thread that uses a device.
        self._threads = [ThreadPoolExecutor(1) for _ in devices]

    def __iter__(self) -> Iterator[_DeviceState]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __enter__(self) -> _Devices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def each(self, work: Callable[[_DeviceState, _Argument], _Result], arguments: Sequence[_Argument]) -> list[_Result]:
        """Call `work` for each device in parallel; a single device uses the calling thread."""
        if len(self._all) == 1:
            return [work(self._all[0], arguments[0])]
        calls = zip(self._threads, self._all, arguments, strict=True)
        futures = [thread.submit(work, state, argument) for thread, state, argument in calls]
        wait(futures)  # after a failure, the others may still use memory that would be freed
        return [future.result() for future in futures]


@dataclass(eq=False)
class _DeviceLayer:
    """A layer on one device."""

    stacks: dict[str, Stack]
    decoder: DecoderLayer | None
    loaded: Mark


@dataclass(eq=False)
class _Staged:
    """A layer on every device."""

    index: int
    copies: list[_DeviceLayer]
    memory: Memory

    @cached_property
    def stored(self) -> set[str]:
        """Return the source's names of the linears in its stacks."""
        return {linear.stored_as for stack in self.copies[0].stacks.values() for linear in stack.of.linears}


class _Output(NamedTuple):
    """A device's encoded experts, or the encoder that will produce them."""

    state: _DeviceState
    encoder: LayerEncoder
    encoded: list[list[EncodedStack]]


class DevicePass:
    """Runs a plan on one or several devices."""

    def __init__(  # noqa: PLR0913 - options are keyword-only
        self,
        plan: Plan,
        runner: Runner,
        devices: Sequence[torch.device],
        *,
        mode: Mode,
        layers: int,
        calibration: Calibration | None = None,
        store: Store | None = None,
        chooser: LayerByLayer | None = None,
        inputs_of: _InputsOfStats,
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._runner, self._layers, self.mode = plan, runner, layers, mode
        self._calibration, self._store, self._chooser = calibration, store, chooser
        self._inputs_of, self._say = inputs_of, say
        self.clock = Clock()
        self._weights = Weights(plan.model, runner.reader)
        self._layer_tensors = tensors_by_layer(plan.model)
        self._projections = stacks_by_layer(plan, layers, forward=calibration is not None)
        self._jobs: dict[int | None, list[Job]] = {}
        for job in runner.pending():
            self._jobs.setdefault(job.layer, []).append(job)
        self._devices, device = _Devices(devices), devices[0]
        self._buffers = Buffers(mode.layers, devices)
        largest = max((linear.parts[s].nbytes for stacks in self._projections for stack in stacks
                       for linear in stack.linears for s in stack.suffixes()), default=1)  # fmt: skip
        slots = Slots(_IN_SLOTS, device, max(largest, slot_nbytes(device)))
        self._loader = Loader(runner.reader, slots, [state.upload for state in self._devices], _READERS, self.clock)
        self._writing: deque[Future[None]] = deque()
        self._group, nbytes = group_of(self._projections, slot_nbytes(device))
        out_slots, quantize = Slots(_OUT_SLOTS, device, nbytes), plan.recipe.quantize
        self._copy_back = CopyBack(runner, out_slots, self._group, quantize, self._writing, self.clock)
        self.measured: dict[int, LayerStats] = {}
        self._last_snapshot = time.monotonic()
        self._one_output = threading.Semaphore(1)

    def run(self, forward_from: int = 0, hidden: torch.Tensor | None = None) -> dict[int, LayerStats]:
        """Run every layer, then the jobs outside the layers; return the statistics.

        Layers before `forward_from` are in `measured` already and are only written, if still pending.
        """
        if self._chooser is not None:
            for layer in sorted(self.measured):
                self._choose(layer, self.measured[layer])
        todo = [layer for layer in range(self._layers) if self._runs(layer, forward_from) or layer in self._jobs]
        if self._calibration is not None and forward_from < self._layers:
            self._start_streams(self._calibration, hidden)
        storing: deque[Future[None]] = deque()
        previous = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            with ThreadPoolExecutor(1) as loader, ThreadPoolExecutor(1) as storer, self._devices, self._wake_on_error():
                queue = [*((layer, self._runs(layer, forward_from)) for layer in todo), None]
                loading = loader.submit(self._load, *queue[0]) if queue[0] else None
                for following in queue[1:]:
                    assert loading is not None
                    with self.clock("waiting for a layer"):
                        staged = loading.result()
                    loading = loader.submit(self._load, *following) if following else None
                    observers = self._forward(staged)
                    hidden_copy = self._snapshot() if observers else None
                    stats = None
                    if observers and self._chooser is not None:  # which experts are encoded depends on the statistics
                        for mark in self._compute_marks():
                            mark.wait()
                        stats = self._stats(staged, observers, hidden_copy)
                        self._choose(staged.index, stats)
                    outputs = self._encode(staged, observers)
                    done = self._compute_marks()
                    if not observers:
                        stats = self.measured.get(staged.index)
                    storing.append(
                        storer.submit(self._store_layer, staged, observers, stats, outputs, done, hidden_copy)
                    )
                    while len(storing) > 1:
                        storing.popleft().result()
                for future in storing:
                    future.result()
            self._writing.extend(self._runner.start(self._jobs.get(None, []), self._inputs_of(None)))
            self._settle(wait=True)
        finally:
            sys.setswitchinterval(previous)
            self._loader.close()
        return self.measured

    def _start_streams(self, calibration: Calibration, hidden: torch.Tensor | None) -> None:
        """Give each device its rows: from a snapshot, or before the first layer."""
        if hidden is None:
            hidden = first_hidden(calibration, self._weights)
        shares = row_shares(len(calibration.rows.tokens), len(self._devices))
        for state, share in zip(self._devices, shares, strict=True):
            part = replace(calibration, rows=calibration.rows.select(share))
            state.stream = DeviceStream(part, state.device, state.compute, self.clock, offloads=self.mode.offloads)
            state.stream.begin(hidden[share])

    @contextmanager
    def _wake_on_error(self) -> Generator[None]:
        """Wake waiting threads after an error or Ctrl-C, so that they can exit."""
        try:
            with self._runner.reader.wake_waiters_on_error():
                yield
        except BaseException:
            self._buffers.close()
            raise

    def _runs(self, layer: int, forward_from: int) -> bool:
        return self._calibration is not None and layer >= forward_from

    def _load(self, layer: int, forward: bool) -> _Staged:
        """Read a layer and copy it to the devices; runs on the loader thread."""
        memory = self._buffers.take()
        try:
            self._writing.extend(self._runner.open_ahead(self._jobs.get(layer, [])))
            projections = self._projections[layer]
            in_stacks = {
                info.name for stack in projections for linear in stack.linears for info in linear.parts.values()
            }
            self._runner.reader.hold(info for info in self._layer_tensors[layer] if info.name not in in_stacks)
            stacks = self._loader.load(projections, self._buffers, memory)
            copies: list[_DeviceLayer] = []
            for state, device_stacks in zip(self._devices, stacks, strict=True):
                decoder = None
                if forward:
                    assert self._calibration is not None
                    with state.upload:
                        decoder = self._calibration.text.decoder_layer(layer, self._weights, DTYPE, str(state.device))
                copies.append(_DeviceLayer(device_stacks, decoder, state.upload.mark()))
            for copy in copies:
                copy.loaded.wait()  # page-locked memory and decoder weights must not be freed before they are copied
            return _Staged(layer, copies, memory)
        except BaseException:
            self._buffers.give_back(memory)
            raise

    def _forward(self, staged: _Staged) -> list[DeviceObserver]:
        """Run a layer on all devices; return their observers in row order."""
        if any(copy.decoder is None for copy in staged.copies):
            return []
        return self._devices.each(lambda state, copy: self._forward_on(state, copy, staged.index), staged.copies)

    def _forward_on(self, state: _DeviceState, copy: _DeviceLayer, layer: int) -> DeviceObserver:
        assert state.stream is not None
        assert copy.decoder is not None
        state.compute.follow(copy.loaded)
        hessians = self._hessian_widths(layer)
        if not copy.stacks and copy.decoder.is_moe:
            stored = self._weights.experts(layer, str(state.device))
            return state.stream.through(copy.decoder, stored, hessians=hessians)
        experts = Experts(copy.stacks, state.compute) if copy.stacks else None
        return state.stream.through(copy.decoder, experts, hessians=hessians)

    def _hessian_widths(self, layer: int) -> tuple[int, int] | None:
        """Return the input widths D and F of a layer's experts if they are still to be encoded with Hessians."""
        quantize = self._plan.recipe.quantize
        if quantize is None or not quantize.needs_hessians:
            return None
        linears = [linear for job in self._jobs.get(layer, []) if job.action == ENCODE and job.role == ROUTED
                   for linear in job.linears]  # fmt: skip
        widths = {linear.projection == DOWN: linear.shape[1] for linear in linears}
        return (widths[False], widths[True]) if len(widths) > 1 else None

    def _choose(self, layer: int, stats: LayerStats) -> None:
        """Restrict the jobs of a measured layer to the experts that are kept."""
        assert self._chooser is not None
        jobs = self._chooser.jobs(layer, stats, self._jobs.get(layer, []))
        if jobs:
            self._jobs[layer] = jobs

    def _snapshot(self) -> torch.Tensor | None:
        """Return a copy of the hidden states of all rows, at most every `KEEP_SECONDS`."""
        if time.monotonic() - self._last_snapshot < KEEP_SECONDS:
            return None
        self._last_snapshot = time.monotonic()
        with self.clock("keep"):
            parts = [state.stream.snapshot() for state in self._devices if state.stream is not None]
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, staged: _Staged, observers: list[DeviceObserver]) -> list[_Output]:
        """Encode a layer's stacks, after the output of the previous layer has left the devices."""
        quantize = self._plan.recipe.quantize
        jobs = [job for job in self._jobs.get(staged.index, []) if self._is_encoded_here(job, staged)]
        if quantize is None or not jobs:
            return []
        with self.clock("waiting for the host"):
            self._one_output.acquire()
        linears = self._linears(staged)
        hessians = [observer.hessians for observer in observers if observer.hessians is not None]
        ran = self._compute_marks() if hessians else []

        def encode(state: _DeviceState, work: tuple[_DeviceLayer, slice]) -> _Output | None:
            copy, share = work
            if share.start == share.stop:
                return None  # more devices than experts
            state.compute.follow(copy.loaded)
            for mark in ran:
                state.compute.follow(mark)  # the Hessians of all devices are added
            with state.compute:
                begin = state.compute.mark()
                stacks = {name: stack.select(linears[name][share]) for name, stack in copy.stacks.items()}
                total = added_hessians(hessians, state.device) if hessians else None
                encoder = LayerEncoder(stacks, quantize.format, quantize.method_of(ROUTED).name, self._group, total)
                encoded = [] if self.mode.grouped else encoder.parts()
                self.clock.between("encode", begin, state.compute.mark())
            return _Output(state, encoder, encoded)

        shares = expert_shares(len(next(iter(linears.values()))), len(self._devices))
        outputs = self._devices.each(encode, list(zip(staged.copies, shares, strict=True)))
        read = self._compute_marks() if hessians else []
        for state in self._devices:
            for mark in read:
                state.compute.follow(mark)  # no device reuses the memory of its Hessians while another one reads them
        for observer in observers:
            observer.hessians = None
        return [output for output in outputs if output is not None]

    def _compute_marks(self) -> list[Mark]:
        return [state.compute.mark() for state in self._devices]

    def _linears(self, staged: _Staged) -> dict[str, tuple[StoredLinear, ...]]:
        """Return the linears that a layer's stacks encode: all of them, or those of the kept experts, in file order."""
        if self._plan.recipe.prune is None:
            return {name: stack.of.linears for name, stack in staged.copies[0].stacks.items()}
        jobs = self._plan.jobs
        if self._chooser is not None:
            kept = self._chooser.choices[staged.index].kept
            jobs = list(self._plan.chosen_jobs(staged.index, kept).values())
        linears = [linear for job in jobs if job.layer == staged.index and self._is_encoded_here(job, staged)
                   for linear in job.linears]  # fmt: skip
        return {stack.name: stack.linears for stack in projections(linears)}

    def _store_layer(
        self,
        staged: _Staged,
        observers: list[DeviceObserver],
        stats: LayerStats | None,
        outputs: list[_Output],
        done: list[Mark],
        hidden: torch.Tensor | None,
    ) -> None:
        """Write a layer; runs on the storer thread. Without `stats`, finish and save those of the observers first."""
        with ExitStack() as cleanup:
            if outputs:
                cleanup.callback(self._one_output.release)
            for output in outputs:
                cleanup.callback(output.encoded.clear)  # frees the memory even if other references remain
            source = cleanup.enter_context(ExitStack())
            source.callback(self._buffers.give_back, staged.memory)
            for copy, mark in zip(staged.copies, done, strict=True):
                mark.wait()
                copy.decoder = None
            if not self.mode.grouped:
                source.close()  # this layer is encoded: its buffers may receive the next one
            if stats is None and observers:
                stats = self._stats(staged, observers, hidden)
            job_inputs = self._inputs_of(stats)
            jobs = self._jobs.get(staged.index, [])
            encoded = [job for job in jobs if self._is_encoded_here(job, staged)]
            names = {job.name for job in encoded}
            others = self._runner.start([job for job in jobs if job.name not in names], job_inputs)
            self._writing.extend(others)
            self._release(others, self._layer_tensors[staged.index])
            for output in outputs:
                parts = self._groups(output) if self.mode.grouped else output.encoded
                self._copy_back.write(output.state.download, parts, encoded, job_inputs)
        self._settle()

    def _groups(self, output: _Output) -> Iterator[list[EncodedStack]]:
        """Encode one group of experts at a time, in the lane that copies them back."""
        groups, download = output.encoder.groups(), output.state.download
        while True:
            with download:
                begin = download.mark()
                group = next(groups, None)
                end = download.mark()
            self.clock.between("encode", begin, end)
            if group is None:
                end.wait()  # the layer's source buffers may be reused from here
                return
            yield group
            del group  # frees it before the next group is encoded

    def _stats(self, staged: _Staged, observers: list[DeviceObserver], hidden: torch.Tensor | None) -> LayerStats:
        """Return and save the statistics of a layer that has run; synchronizes."""
        layer = staged.index
        parts: list[LayerStats] = []
        for state, observer in zip(self._devices, observers, strict=True):
            with self.clock("statistics"), state.download:
                parts.append(observer.finish())
        stats = parts[0] if len(parts) == 1 else merge(parts)
        self.measured[layer] = stats
        self._runner.reader.refuse_changes()
        if self._store is not None:
            self._store.save(layer, stats)
            if hidden is not None:
                with self.clock("keep"):
                    self._store.save_hidden(layer + 1, hidden)
        self._say(f"measured layer {layer + 1} of {self._layers}")
        hessians = [observer.hessians for observer in observers if observer.hessians is not None]
        if hessians and not staged.stored:  # the host encodes experts that cannot be stacked
            stats = replace(stats, hessians=added_hessians(hessians, hessians[0].shared.device).on_host())
        return stats

    def _is_encoded_here(self, job: Job, staged: _Staged) -> bool:
        quantize = self._plan.recipe.quantize
        if quantize is None or job.action != ENCODE or not job.linears:
            return False
        known = has_encoder(quantize.format, quantize.method_of(job.role).name)
        return known and all(linear.stored_as in staged.stored for linear in job.linears)

    def _release(self, futures: list[Future[None]], infos: Iterable[TensorInfo]) -> None:
        """Release a layer's cached tensors when the jobs that read them are done."""
        tensors = list(infos)
        when_done(futures, lambda: self._runner.reader.release(tensors))

    def _settle(self, *, wait: bool = False) -> None:
        """Raise errors of finished writer threads; with `wait`, wait for all of them."""
        while self._writing and (wait or self._writing[0].done()):
            self._writing.popleft().result()
        if wait:
            self._runner.settle()
