"""What a run on GPUs would take of their memory and how long it would take: counted from headers, at measured rates.

The rates are data (`data/gpu_rates.json`), measured on the GPU that they name, and say where they come from. Disk, bus,
GPU and host work side by side while two layers fit (`cuda.memory.FULL`), so the slowest of them decides, after a start.
Where only one does, they are taken to wait for each other: their sum is an upper bound that nobody has measured.
Neither has anybody measured several GPUs: they are taken to share the forward and the encoding, and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from halfbyte.cuda.built import refuse_unbuilt
from halfbyte.cuda.memory import FULL, LEAN, MODES, Mode, Needs, choose_mode, needs_of, planned_tokens
from halfbyte.cuda.projections import encodes_experts, stacks_by_layer
from halfbyte.cuda.shares import refuse_too_many
from halfbyte.plan.estimate import ASSUMED_WRITING
from halfbyte.plan.manifest import Plan
from halfbyte.plan.measure import Disk
from halfbyte.plan.rules import ENCODE, ROUTED
from halfbyte.terminal.units import size

MEASURED_GPU = "H200"
_PASSES = 4  # of hidden states over the bus, a layer: to attention and back, to the experts' sum and back


@dataclass(frozen=True, slots=True)
class Rates:
    """What one kind of GPU was measured to do, with the machine around it."""

    gpu: str
    forward_flop_per_s: float
    to_device_nbytes_per_s: float
    to_host_nbytes_per_s: float
    host_write_nbytes_per_s: float
    encode_weights_per_s: float
    sweep_weights_per_s: float
    start_s: float
    compile_s: float  # once for each machine: kernels that were compiled are kept


@cache
def rates(gpu: str = MEASURED_GPU) -> Rates:
    """Return what was measured on a GPU."""
    rows: Mapping[str, Any] = json.loads(files("halfbyte.plan").joinpath("data/gpu_rates.json").read_text())
    return Rates(gpu, **{key: value for key, value in rows[gpu].items() if key != "about"})


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done."""

    flop: int
    to_device_nbytes: int
    to_host_nbytes: int
    write_nbytes: int
    encoded_weights: int
    swept: bool

    def seconds(self, at: Rates) -> dict[str, float]:
        """Return what each part of the machine needs for it."""
        encode = self.encoded_weights / at.encode_weights_per_s
        encode += self.encoded_weights / at.sweep_weights_per_s if self.swept else 0
        bus = self.to_device_nbytes / at.to_device_nbytes_per_s, self.to_host_nbytes / at.to_host_nbytes_per_s
        return {
            "bus": max(bus),
            "GPU": self.flop / at.forward_flop_per_s + encode,
            "host": self.write_nbytes / at.host_write_nbytes_per_s,
        }


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """Seconds of a run, and what they rest on."""

    rates: Rates
    mode: Mode
    waits: Mapping[str, float]  # seconds of disk, bus, GPU and host
    disk: Disk | None
    moe_layer_s: float  # of the slowest of bus, GPU and host, in the largest layer
    devices: int = 1

    @property
    def seconds(self) -> float:
        """Return the whole."""
        both = max(self.waits.values()) if self.mode == FULL else sum(self.waits.values())
        return self.rates.start_s + self.rates.compile_s + both

    def parts(self) -> list[tuple[str, float]]:
        """Return what the whole is made of."""
        return [("start", self.rates.start_s), ("compiling, once", self.rates.compile_s), *self.waits.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        return {
            "seconds": round(self.seconds, 1),
            "mode": self.mode.name,
            **{f"{name.lower()}_s": round(seconds, 1) for name, seconds in self.waits.items()},
            "start_s": self.rates.start_s,
            "compile_s": self.rates.compile_s,
            "moe_layer_s": round(self.moe_layer_s, 2),
            "rates_of": self.rates.gpu,
            "measured_read_nbytes_per_s": round(self.disk.read_nbytes_per_s) if self.disk else None,
            "basis": self.basis(),
        }

    def basis(self) -> str:
        """Say what was measured and what was assumed."""
        at = self.rates
        found = f"rates of one {at.gpu} and its host: forward {at.forward_flop_per_s / 1e12:.0f} TFLOP/s, "
        found += f"final shards {at.host_write_nbytes_per_s / 1e9:.1f} GB/s"
        if self.devices > 1:
            found += f"; {self.devices} GPUs share forward and encoding, not measured so"
        if self.mode != FULL:
            found += "; one after the other, not measured so"
        if self.disk is None:
            return found + f"; from and to memory, {self.moe_layer_s:.1f} s a MoE layer: the disk is not in it"
        found += f"; measured here: read {self.disk.read_nbytes_per_s / 1e9:.1f} GB/s"
        if self.disk.write_nbytes_per_s is None:
            return found + ASSUMED_WRITING
        return found + f", write {self.disk.write_nbytes_per_s / 1e9:.1f} GB/s"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Memory of each GPU in every mode, and the time in the one that would be taken."""

    needs: Needs
    tokens: int  # on the GPU that has most
    time: DeviceEstimate
    devices: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        memory = {
            mode.name: {
                "total_nbytes": self.needs.total(mode),
                **{f"{name}_nbytes": nbytes for name, nbytes in self.needs.parts(mode).items()},
                "host_nbytes": self.needs.host(mode),
            }
            for mode in MODES
        }
        return {"mode": self.time.mode.name, "devices": self.devices, "tokens": self.tokens, "memory": memory}

    def lines(self) -> list[tuple[str, str]]:
        """Say it: as it would run, as it runs with more memory, and with least."""
        names = {FULL: "two layers at once", LEAN: "output in groups, hidden states on the host"}
        names.setdefault(self.time.mode, "one layer at a time")
        tokens = f" with {self.tokens:,} tokens" if self.tokens else ""
        whose = "GPU" if self.devices == 1 else f"each of {self.devices} GPUs"
        found: list[tuple[str, str]] = []
        for mode in (mode for mode in MODES if mode in names):
            parts = ", ".join(f"{name.replace('_', ' ')} {size(n)}" for name, n in self.needs.parts(mode).items() if n)
            chosen = " <- this one" if mode == self.time.mode and mode != FULL else ""
            found.append(
                (f"{whose}, {mode}", f"{size(self.needs.total(mode))}{tokens}, {names[mode]} ({parts}){chosen}")
            )
        return found


def on_device(plan: Plan, disk: Disk | None, limit: int | None, devices: int = 1) -> OnDevice:
    """Return what a plan takes of each of some GPUs that have so much memory (None: enough), and how long."""
    refuse_unbuilt(plan.recipe, measures=plan.recipe.calibrate is not None)
    if plan.recipe.calibrate is not None:
        refuse_too_many(plan.recipe.calibrate.samples, devices)
    tokens = planned_tokens(plan, devices)
    need = needs_of(plan, tokens, devices=devices)
    mode = choose_mode(need, limit, f"--device-memory {size(limit or 0)}")
    at = rates()
    layers = work_by_layer(plan, tokens)
    whole = Work(
        flop=sum(work.flop for work in layers),
        to_device_nbytes=sum(work.to_device_nbytes for work in layers),
        to_host_nbytes=sum(work.to_host_nbytes for work in layers),
        write_nbytes=plan.write_nbytes,
        encoded_weights=sum(work.encoded_weights for work in layers) // devices,
        swept=any(work.swept for work in layers),
    )
    waits = whole.seconds(at)
    if mode.offloads:
        waits["bus"] += _PASSES * len(layers) * need.states / at.to_host_nbytes_per_s
    if disk is not None:
        waits = {"disk": disk.seconds(plan.read_nbytes, plan.write_nbytes), **waits}
    largest = max(layers, key=lambda work: work.write_nbytes, default=None)
    layer_s = max(largest.seconds(at).values()) if largest else 0.0
    return OnDevice(need, tokens, DeviceEstimate(at, mode, waits, disk, layer_s, devices), devices)


def work_by_layer(plan: Plan, tokens: int) -> list[Work]:
    """Return what the device does for each decoder layer."""
    count = plan.layers or plan.model.layers
    runs = plan.model.architecture.number(plan.checkpoint.config, "layers") or count
    met = [0] * count  # weights that a token meets
    routed = [0] * count
    for linear in plan.model.linears.values():
        if linear.layer is not None and linear.layer < count:
            (routed if linear.role == ROUTED else met)[linear.layer] += linear.weights
    for place, info in plan.model.plain.values():
        if place.role == "router" and place.layer is not None and place.layer < count:
            met[place.layer] += math.prod(info.shape)
    written, made = [0] * count, [0] * count
    for job in plan.jobs:
        if job.layer is not None and job.layer < count:
            written[job.layer] += job.write_nbytes
            made[job.layer] += job.write_nbytes if job.role == ROUTED and job.action == ENCODE else 0
    stacks = stacks_by_layer(plan, count, forward=tokens > 0)
    here = [encodes_experts(plan) and bool(found) for found in stacks]
    share = plan.model.active_experts / max(plan.model.experts, 1)
    return [
        Work(
            flop=2 * tokens * int(met[at] + routed[at] * share) if at < runs else 0,
            to_device_nbytes=sum(one.nbytes for one in found),
            to_host_nbytes=made[at] if here[at] else 0,
            write_nbytes=written[at],
            encoded_weights=routed[at] if here[at] else 0,
            swept=here[at] and plan.recipe.quantize is not None and plan.recipe.quantize.scales == "mse",
        )
        for at, found in enumerate(stacks)
    ]
