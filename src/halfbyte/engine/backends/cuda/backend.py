"""Entry points of the GPU backend: check the devices for a plan, run the plan on them, or only calibrate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from halfbyte.checkpoint.atomic_write import Journal
from halfbyte.checkpoint.reader import shard_stamps
from halfbyte.engine.backends import local
from halfbyte.engine.backends.cuda.placement import Mode, Needs, choose_mode, most_rows, needs_of, refuse_too_many
from halfbyte.engine.backends.cuda.streams import slot_nbytes
from halfbyte.engine.backends.support import Resources
from halfbyte.engine.jobs import JobInputs, inputs_from_stats
from halfbyte.engine.runner import Progress, Runner, no_inputs
from halfbyte.errors import MachineError
from halfbyte.machine.device_option import CUDA, device_names
from halfbyte.machine.library_settings import allow_expandable_segments
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED, Job
from halfbyte.ui.units import size

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.calibrate.store import Say, Statistics
    from halfbyte.calibrate.stream import Calibration
    from halfbyte.engine.backends.cuda.layer_loop import DevicePass
    from halfbyte.engine.dispatch import Work
    from halfbyte.prune.plan_source import LayerByLayer

_CONTEXT_NBYTES = 600_000_000  # the CUDA context, which PyTorch's allocator does not count


def devices_of(text: str) -> list[torch.device]:
    """Return the devices of a --device value."""
    return [torch.device(name) for name in device_names(text)]


def check_machine(*devices: torch.device) -> None:
    """Raise if this machine cannot run the kernels."""
    allow_expandable_segments()
    if devices[0].type == CUDA and not torch.cuda.is_available():
        fix = "check the driver (nvidia-smi) and that PyTorch is a CUDA build, or use --device cpu"
        raise MachineError("PyTorch detects no CUDA device", where="--device cuda", fix=fix)
    for device in devices:
        if device.type == CUDA and (device.index or 0) >= (count := torch.cuda.device_count()):
            last = f"cuda:{count - 1}"
            what = f"{device} does not exist: PyTorch detects {count} {'GPU' if count == 1 else 'GPUs'}"
            raise MachineError(what, where=f"--device {device}", fix=f"use at most {last}; see halfbyte doctor")
    if find_spec("triton") is None:
        fix = "install triton, which is part of CUDA builds of PyTorch, or use --device cpu"
        raise MachineError("Triton, which the GPU kernels need, is not installed", where="--device", fix=fix)


def check_resources(resources: Resources) -> None:
    """Raise if this machine lacks the devices."""
    check_machine(*devices_of(resources.device))


def check_plan(plan: Plan, measured: Statistics | None, resources: Resources) -> None:
    """Raise if the address space, the rows or the devices' memory do not suffice."""
    local.check_plan(plan, measured, resources)
    devices = devices_of(resources.device)
    calibration = measured.calibration if measured else None
    if calibration is not None:
        refuse_too_many(len(calibration.rows.tokens), len(devices))
    mode_of(plan, calibration, devices, resources.device_memory)


def mode_of(
    plan: Plan, calibration: Calibration | None, devices: Sequence[torch.device], limit: int | None
) -> tuple[Needs, Mode]:
    """Return the memory needs per device, and the fastest mode that fits on every device.

    Available memory is the free memory or the limit. A device that is listed twice has half of it each time.
    """
    rows, length = calibration.rows.tokens.shape if calibration else (0, 0)
    tokens = most_rows(rows, len(devices)) * length
    need = needs_of(plan, tokens, slot_nbytes(devices[0]), len(devices))
    free, where = limit, f"--device-memory {size(limit or 0)}"
    for device in devices:
        if device.type != CUDA:
            continue
        times = devices.count(device)
        torch.cuda.empty_cache()  # frees memory cached by earlier runs of this process
        device_free, total = torch.cuda.mem_get_info(device)
        if free is None or device_free // times < free:
            free, where = device_free // times, str(device)
        # Pass the limit to the allocator, which otherwise caches freed memory up to the device's capacity.
        share = 1.0 if limit is None else max(0, times * limit - _CONTEXT_NBYTES) / total
        with torch.cuda.device(device):  # the function's own argument must have an index
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    return need, choose_mode(need, free, where)


def run(work: Work) -> Mapping[int, LayerStats]:
    """Run all pending jobs; return the statistics of the run, if it has any."""
    devices, limit = devices_of(work.resources.device), work.resources.device_memory
    layers, _ = run_on_device(work.plan, work.runner, work.measured, devices, limit, chooser=work.chooser)
    return layers


def run_on_device(  # noqa: PLR0913 - keyword-only at the end
    plan: Plan,
    runner: Runner,
    measured: Statistics | None,
    devices: Sequence[torch.device],
    limit: int | None = None,
    *,
    chooser: LayerByLayer | None = None,
    known: dict[int, LayerStats] | None = None,
) -> tuple[dict[int, LayerStats], DevicePass]:
    """Run all pending jobs; return the statistics, and the pass with its timings.

    If given, `known` receives the statistics of each layer before its progress message, for callers that count layers.
    """
    from halfbyte.engine.backends.cuda.layer_loop import DevicePass  # noqa: PLC0415

    quantize = plan.recipe.quantize

    def inputs_of(stats: LayerStats | None) -> Callable[[Job], JobInputs]:
        return no_inputs if stats is None else inputs_from_stats(stats, quantize)

    layers = plan.layers or plan.model.layers
    calibration = measured.calibration if measured else None
    store = measured.store if measured else None
    stored: dict[int, LayerStats] = {}
    forward_from, hidden = 0, None
    if measured is not None and calibration is None:
        stored = dict(measured.layers(runner.reader, None, runner.say, ()))
    elif store is not None:
        store.begin()
        again = {job.layer for job in runner.pending() if job.role == ROUTED and job.action == ENCODE}
        needs_hessians = quantize is not None and quantize.needs_hessians  # which are not saved
        resumed = store.resume(again={layer for layer in again if layer is not None} if needs_hessians else ())
        stored, forward_from, hidden = dict(resumed.measured), resumed.next_layer, resumed.hidden
        calibration = None if resumed.complete else calibration
    device_pass = DevicePass(
        plan,
        runner,
        devices,
        mode=mode_of(plan, calibration, devices, limit)[1],
        layers=layers,
        calibration=calibration,
        store=store,
        chooser=chooser,
        inputs_of=inputs_of,
        say=runner.say,
    )
    device_pass.measured = stored if known is None else known
    device_pass.measured |= stored
    device_pass.run(forward_from, hidden)
    if calibration is not None and store is not None:
        store.finish()
    return device_pass.measured, device_pass


class OnDevice:
    """A calibration without a checkpoint: a plan without jobs, so the statistics match those of `quantize`.

    The constructor raises if this machine lacks the devices.
    """

    def __init__(self, empty_plan: Plan, device: str, limit: int | None = None) -> None:
        self._plan, self._resources = empty_plan, Resources(threads=1, device=device, device_memory=limit)
        check_resources(self._resources)

    def check(self, statistics: Statistics) -> None:
        """Raise if the devices do not support the calibration or lack memory."""
        check_plan(self._plan, statistics, self._resources)

    def run(self, statistics: Statistics, folder: Path, measured: dict[int, LayerStats], say: Say) -> None:
        """Measure the layers that no earlier run has measured; `measured` is filled during the run."""

        def report(progress: Progress) -> None:
            say(progress.shard)

        journal = Journal(folder / "journal.jsonl")  # never written: there are no shards
        seen, resources = shard_stamps(self._plan.checkpoint), Resources(threads=1)
        with Runner(self._plan, folder, journal, {}, seen=seen, resources=resources, progress=report) as runner:
            devices, limit = devices_of(self._resources.device), self._resources.device_memory
            run_on_device(self._plan, runner, statistics, devices, limit, known=measured)
