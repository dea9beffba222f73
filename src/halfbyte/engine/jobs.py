"""Run one job: read its tensors, decode or encode them with its method, and return the output tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.activation_scales import fixed_scales, scales_of
from halfbyte.families.family import DOWN
from halfbyte.families.linears import read_linear
from halfbyte.formats.codec import amax, decode
from halfbyte.formats.encoded import Array, Encoded, Quality
from halfbyte.methods.method import Encode, Group, Linear
from halfbyte.plan.rules import DECODE, ENCODE, KEEP, ROUTED, Job
from halfbyte.recipe.decisions import Quantize

if TYPE_CHECKING:
    from halfbyte.calibrate.stats import LayerStats


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The result of a job: its output tensors by name, and the encoding error of each linear."""

    tensors: Mapping[str, Array]
    quality: Mapping[str, Quality]


@dataclass(frozen=True, slots=True)
class JobInputs:
    """Calibrated inputs of a job: tensors such as input scales, and the encoder of its layer, if it uses statistics."""

    tensors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    encode: Encode | None = None


def inputs_from_stats(stats: LayerStats, quantize: Quantize | None) -> Callable[[Job], JobInputs]:
    """Return a function that computes the inputs of any job of a layer from the layer's statistics."""
    encode = None
    if quantize is not None and quantize.needs_hessians and stats.hessians is not None:
        encode = quantize.method_of(ROUTED).encoder(stats.hessians)

    def inputs_of(job: Job) -> JobInputs:
        if quantize is None or job.action != ENCODE:
            return JobInputs()
        needs = bool(job.linears) and quantize.method_of(job.role).needs_hessians
        return JobInputs(scales_of(job, stats, quantize), encode if needs else None)

    return inputs_of


def apply(job: Job, reader: Reader, quantize: Quantize | None, inputs: JobInputs) -> JobOutput:
    """Return the output tensors of a job that decodes or encodes. Kernels run on the calling thread."""
    assert job.action != KEEP  # kept tensors are copied in pieces instead
    tensors: dict[str, Array] = {name: reader.raw(bias) for name, (bias,) in job.copies()}
    quality: dict[str, Quality] = {}
    if job.action == DECODE:
        for linear in job.linears:
            weight: Array = decode(read_linear(linear, reader), name=linear.stored_as, threads=1)
            tensors[f"{linear.module}.weight"] = weight
    elif job.action == ENCODE:
        assert quantize is not None
        for module, encoded in _encode(job, reader, quantize, inputs.encode).items():
            tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in encoded.tensors.items()}
            if encoded.quality is not None:
                quality[module] = encoded.quality
        tensors |= fixed_scales(job, quantize)
    tensors |= inputs.tensors
    assert {output.name for output in job.outputs} == tensors.keys(), job.name
    return JobOutput(tensors, quality)


def _encode(job: Job, reader: Reader, quantize: Quantize, encode: Encode | None) -> dict[str, Encoded]:
    linears: list[Linear] = []
    for fused in job.fused_groups():
        sources = [(linear, read_linear(linear, reader)) for linear in fused]
        shared = None
        if len(sources) > 1:  # inference engines fuse these and use one tensor scale for all
            shared = max(amax(source, name=linear.stored_as, threads=1) for linear, source in sources)
        linears += [
            Linear(
                linear.module,
                source,
                shared,
                linear.stored_as,
                linear.expert,
                has_expert_inputs=linear.expert is not None and linear.projection == DOWN,
            )
            for linear, source in sources
        ]
    method = quantize.method_of(job.role)
    assert encode is not None or not method.needs_hessians  # unwritten layers are measured in the same run
    encode = encode or method.encoder(None)
    return encode(Group(quantize.format, linears))


def as_bytes(tensor: Array) -> memoryview:
    """Return a tensor's bytes in C order."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
