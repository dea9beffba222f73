"""From a plan and what it rests on to a pass on the device; and everything that can be said before it begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from halfbyte.cuda.built import refuse_unbuilt
from halfbyte.cuda.memory import Mode, Needs, choose_mode, needs_of
from halfbyte.cuda.shares import most_rows, refuse_too_many
from halfbyte.cuda.slots import slot_nbytes
from halfbyte.errors import MachineError
from halfbyte.machine.devices import CUDA, device_names
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import Job
from halfbyte.run import Runner, nothing_given
from halfbyte.terminal.units import size
from halfbyte.transform.apply import Given
from halfbyte.transform.from_data import from_data

if TYPE_CHECKING:
    from halfbyte.calibrate.given import Statistics
    from halfbyte.calibrate.stats import LayerStats
    from halfbyte.calibrate.stream import Calibration
    from halfbyte.cuda.passing import DevicePass

_CONTEXT_NBYTES = 600_000_000  # of CUDA itself, which PyTorch's allocator does not know of
# Without it, memory that one lane has used and freed cannot be used by another: a third more is taken than is needed.
for _name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):  # the newer name and the older
    os.environ.setdefault(_name, "expandable_segments:True")


def devices_of(text: str) -> list[torch.device]:
    """Return the devices that a text names."""
    return [torch.device(name) for name in device_names(text)]


def check_machine(*devices: torch.device) -> None:
    """Refuse a machine that cannot run the kernels, before any work."""
    if devices[0].type == CUDA and not torch.cuda.is_available():
        fix = "check the driver (nvidia-smi) and that PyTorch is a CUDA build, or use --device cpu"
        raise MachineError("PyTorch sees no CUDA device here", where="--device cuda", fix=fix)
    for device in devices:
        if device.type == CUDA and (device.index or 0) >= (count := torch.cuda.device_count()):
            last = f"cuda:{count - 1}"
            what = f"there is no {device}: PyTorch sees {count} {'GPU' if count == 1 else 'GPUs'}"
            raise MachineError(what, where=f"--device {device}", fix=f"{last} is the last one; see halfbyte doctor")
    if find_spec("triton") is None:
        fix = "install triton, which CUDA builds of PyTorch come with, or use --device cpu"
        raise MachineError("Triton, which the kernels are written in, is not installed", where="--device", fix=fix)


def check_device(
    made: Plan, measured: Statistics | None, devices: Sequence[torch.device], limit: int | None = None
) -> None:
    """Refuse, before anything is written, what these devices or this version cannot do."""
    check_machine(*devices)
    refuse_unbuilt(made.recipe, measures=measured is not None and measured.calibration is not None)
    calibration = measured.calibration if measured else None
    if calibration is not None:
        refuse_too_many(len(calibration.rows.tokens), len(devices))
    mode_of(made, calibration, devices, limit)


def mode_of(
    made: Plan, calibration: Calibration | None, devices: Sequence[torch.device], limit: int | None
) -> tuple[Needs, Mode]:
    """Return what the pass needs of each device, and the fastest way to do it in the memory that all of them have.

    That is what is free, or what may be taken. One that is named twice has half of it each time.
    """
    rows, length = calibration.rows.tokens.shape if calibration else (0, 0)
    tokens = most_rows(rows, len(devices)) * length
    need = needs_of(made, tokens, slot_nbytes(devices[0]), len(devices))
    free, where = limit, f"--device-memory {size(limit or 0)}"
    for device in devices:
        if device.type != CUDA:
            continue
        times = devices.count(device)
        torch.cuda.empty_cache()  # what an earlier run of this process has left
        there, whole = torch.cuda.mem_get_info(device)
        if free is None or there // times < free:
            free, where = there // times, str(device)
        # A limit is the allocator's too, or it would keep what it has freed, as long as the device has more.
        share = 1.0 if limit is None else max(0, times * limit - _CONTEXT_NBYTES) / whole
        with torch.cuda.device(device):  # the call itself wants a number
            torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    return need, choose_mode(need, free, where)


def run_on_device(
    made: Plan,
    runner: Runner,
    measured: Statistics | None,
    devices: Sequence[torch.device],
    limit: int | None = None,
    *,
    found: dict[int, LayerStats] | None = None,
) -> tuple[dict[int, LayerStats], DevicePass]:
    """Do every job that is pending; return what was measured, and the pass with its clock.

    What was measured is in `found` as soon as it is said, for whoever counts it.
    """
    from halfbyte.cuda.passing import DevicePass  # noqa: PLC0415

    quantize = made.recipe.quantize

    def given_of(stats: LayerStats | None) -> Callable[[Job], Given]:
        return nothing_given if stats is None else from_data(stats, quantize)

    layers = made.layers or made.model.layers
    calibration = measured.calibration if measured else None
    store = measured.store if measured else None
    known: dict[int, LayerStats] = {}
    forward_from, hidden = 0, None
    if measured is not None and calibration is None:
        known = dict(measured.layers(runner.reader, None, runner.say, ()))
    elif store is not None:
        store.begin()
        if (whole := store.whole()) is not None:
            known, calibration = whole, None
        elif (kept := store.load_hidden()) is not None:
            forward_from, hidden = kept
            known = {layer: stats for layer in range(forward_from) if (stats := store.load(layer)) is not None}
    passing = DevicePass(
        made,
        runner,
        devices,
        mode=mode_of(made, calibration, devices, limit)[1],
        layers=layers,
        calibration=calibration,
        store=store,
        given_of=given_of,
        say=runner.say,
    )
    passing.measured = known if found is None else found
    passing.measured |= known
    passing.run(forward_from, hidden)
    if calibration is not None and store is not None:
        store.finish()
    return passing.measured, passing
