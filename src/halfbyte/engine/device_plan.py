"""Estimate GPU memory and run time from the headers and measured rates.

The rates in `data/gpu_rates.json` were measured on the GPU they name. If two layers fit into memory
(`cuda.placement.FULL`), disk, bus, GPU and host overlap and the slowest determines the time. Otherwise their times are
added, an upper bound that has not been measured. Multi-GPU runs have not been measured either: the estimate divides
only the forward pass and the encoding among the GPUs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from halfbyte.engine.backends.cuda.placement import (
    FULL,
    LEAN,
    MODES,
    Mode,
    Needs,
    choose_mode,
    encodes_experts,
    needs_of,
    planned_tokens,
    refuse_too_many,
    stacks_by_layer,
)
from halfbyte.methods.gptq import GPTQ
from halfbyte.methods.rounding import MSE
from halfbyte.plan.estimate import ASSUMED_WRITING
from halfbyte.plan.machine_speed import Disk
from halfbyte.plan.manifest import Plan
from halfbyte.plan.rules import ENCODE, ROUTED
from halfbyte.ui.units import size

MEASURED_GPU = "H200"
_PASSES = 4  # transfers of the hidden states per layer: to attention and back, to the expert sum and back


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of one GPU model and its host."""

    gpu: str
    forward_flop_per_s: float
    to_device_nbytes_per_s: float
    to_host_nbytes_per_s: float
    host_write_nbytes_per_s: float
    encode_weights_per_s: float
    sweep_weights_per_s: float
    gptq_weights_per_s: float  # at Kimi-K2.6's shapes and 262,144 tokens, Hessians included
    start_s: float
    compile_s: float  # once per machine: compiled kernels are cached


@cache
def rates(gpu: str = MEASURED_GPU) -> Rates:
    """Return the measured rates of a GPU."""
    rows: Mapping[str, Any] = json.loads(files("halfbyte.plan").joinpath("data/gpu_rates.json").read_text())
    return Rates(gpu, **{key: value for key, value in rows[gpu].items() if key != "about"})


@dataclass(frozen=True, slots=True)
class Work:
    """Amount of work by resource."""

    flop: int
    to_device_nbytes: int
    to_host_nbytes: int
    write_nbytes: int
    encoded_weights: int
    method: str | None = None  # of the encoded weights

    def seconds(self, at: Rates) -> dict[str, float]:
        """Return the seconds that bus, GPU and host take."""
        encode = self.encoded_weights / at.encode_weights_per_s
        if self.method == MSE.name:
            encode += self.encoded_weights / at.sweep_weights_per_s
        elif self.method == GPTQ.name:
            encode += self.encoded_weights / at.gptq_weights_per_s
        bus = self.to_device_nbytes / at.to_device_nbytes_per_s, self.to_host_nbytes / at.to_host_nbytes_per_s
        return {
            "bus": max(bus),
            "GPU": self.flop / at.forward_flop_per_s + encode,
            "host": self.write_nbytes / at.host_write_nbytes_per_s,
        }


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """Estimated run time and its basis."""

    rates: Rates
    mode: Mode
    waits: Mapping[str, float]  # seconds of disk, bus, GPU and host
    disk: Disk | None
    moe_layer_s: float  # time of the slowest of bus, GPU and host in the largest layer
    devices: int = 1

    @property
    def seconds(self) -> float:
        """Return the estimated total."""
        work_s = max(self.waits.values()) if self.mode == FULL else sum(self.waits.values())
        return self.rates.start_s + self.rates.compile_s + work_s

    def parts(self) -> list[tuple[str, float]]:
        """Return the components of the total."""
        return [("start", self.rates.start_s), ("compiling, once", self.rates.compile_s), *self.waits.items()]

    def as_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
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
        """Describe the measured and assumed rates."""
        at = self.rates
        basis = f"rates of one {at.gpu} and its host: forward {at.forward_flop_per_s / 1e12:.0f} TFLOP/s, "
        basis += f"final shards {at.host_write_nbytes_per_s / 1e9:.1f} GB/s"
        if self.devices > 1:
            basis += f"; assumed: {self.devices} GPUs divide forward and encoding"
        if self.mode != FULL:
            basis += "; assumed: no overlap"
        if self.disk is None:
            return basis + f"; without disk I/O, {self.moe_layer_s:.1f} s per MoE layer"
        basis += f"; measured here: read {self.disk.read_nbytes_per_s / 1e9:.1f} GB/s"
        if self.disk.write_nbytes_per_s is None:
            return basis + ASSUMED_WRITING
        return basis + f", write {self.disk.write_nbytes_per_s / 1e9:.1f} GB/s"


@dataclass(frozen=True, slots=True)
class OnDevice:
    """Memory per GPU in every mode, and the time in the selected mode."""

    needs: Needs
    tokens: int  # on the GPU with the most tokens
    time: DeviceEstimate
    devices: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Return the data that `--json` prints."""
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
        """Return a line each for the selected mode, the mode with most memory and the one with least."""
        names = {FULL: "two layers at a time", LEAN: "output in groups, hidden states on the host"}
        names.setdefault(self.time.mode, "one layer at a time")
        tokens = f" with {self.tokens:,} tokens" if self.tokens else ""
        label = "GPU" if self.devices == 1 else f"each of {self.devices} GPUs"
        lines: list[tuple[str, str]] = []
        for mode in (mode for mode in MODES if mode in names):
            parts = ", ".join(f"{name.replace('_', ' ')} {size(n)}" for name, n in self.needs.parts(mode).items() if n)
            selected = " <- selected" if mode == self.time.mode and mode != FULL else ""
            lines.append(
                (f"{label}, {mode}", f"{size(self.needs.total(mode))}{tokens}, {names[mode]} ({parts}){selected}")
            )
        return lines


def on_device(plan: Plan, disk: Disk | None, limit: int | None, devices: int = 1) -> OnDevice:
    """Estimate memory per GPU and run time of a plan; `limit` is the memory per GPU (None: unlimited)."""
    if plan.recipe.calibrate is not None:
        refuse_too_many(plan.recipe.calibrate.samples, devices)
    tokens = planned_tokens(plan, devices)
    need = needs_of(plan, tokens, devices=devices)
    mode = choose_mode(need, limit, f"--device-memory {size(limit or 0)}")
    at = rates()
    layers = work_by_layer(plan, tokens)
    total = Work(
        flop=sum(work.flop for work in layers),
        to_device_nbytes=sum(work.to_device_nbytes for work in layers),
        to_host_nbytes=sum(work.to_host_nbytes for work in layers),
        write_nbytes=plan.write_nbytes,
        encoded_weights=sum(work.encoded_weights for work in layers) // devices,
        method=next((work.method for work in layers if work.method), None),
    )
    waits = total.seconds(at)
    if mode.offloads:
        waits["bus"] += _PASSES * len(layers) * need.states / at.to_host_nbytes_per_s
    if disk is not None:
        waits = {"disk": disk.seconds(plan.read_nbytes, plan.write_nbytes), **waits}
    largest = max(layers, key=lambda work: work.write_nbytes, default=None)
    layer_s = max(largest.seconds(at).values()) if largest else 0.0
    return OnDevice(need, tokens, DeviceEstimate(at, mode, waits, disk, layer_s, devices), devices)


def work_by_layer(plan: Plan, tokens: int) -> list[Work]:
    """Return the device's work for each decoder layer."""
    count = plan.layers or plan.model.layers
    runs = plan.model.family.number(plan.checkpoint.config, "layers") or count
    active = [0] * count  # weights that every token uses
    routed = [0] * count
    for linear in plan.model.linears.values():
        if linear.layer is not None and linear.layer < count:
            (routed if linear.role == ROUTED else active)[linear.layer] += linear.weights
    for place, info in plan.model.plain.values():
        if place.role == "router" and place.layer is not None and place.layer < count:
            active[place.layer] += math.prod(info.shape)
    written, encoded = [0] * count, [0] * count
    for job in plan.jobs:
        if job.layer is not None and job.layer < count:
            written[job.layer] += job.write_nbytes
            encoded[job.layer] += job.write_nbytes if job.role == ROUTED and job.action == ENCODE else 0
    stacks = stacks_by_layer(plan, count, forward=tokens > 0)
    encodes = [encodes_experts(plan) and bool(layer_stacks) for layer_stacks in stacks]
    method = plan.recipe.quantize.method_of(ROUTED).name if plan.recipe.quantize is not None else None
    share = plan.model.active_experts / max(plan.model.experts, 1)
    return [
        Work(
            flop=2 * tokens * int(active[layer] + routed[layer] * share) if layer < runs else 0,
            to_device_nbytes=sum(stack.nbytes for stack in layer_stacks),
            to_host_nbytes=encoded[layer] if encodes[layer] else 0,
            write_nbytes=written[layer],
            encoded_weights=routed[layer] if encodes[layer] else 0,
            method=method if encodes[layer] else None,
        )
        for layer, layer_stacks in enumerate(stacks)
    ]
