"""Run one job: read its tensors, decode or encode them, and return the output tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.checkpoint.reader import Reader
from halfbyte.families.stored_linear import stored
from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.encoded import Encoded, Quality
from halfbyte.formats.reference.gptq import Moves
from halfbyte.methods.activation_scales import fixed_scales
from halfbyte.plan.rules import DECODE, ENCODE, KEEP, Job, method_of
from halfbyte.recipe.decisions import Quantize

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The result of a job: its output tensors by name, and the encoding error of each linear."""

    tensors: Mapping[str, Array]
    quality: Mapping[str, Quality]


@dataclass(frozen=True, slots=True)
class JobInputs:
    """Calibrated inputs of a job: tensors such as input scales, and GPTQ inverse-Hessian factors."""

    tensors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    moves: Moves | None = None


def apply(job: Job, reader: Reader, quantize: Quantize | None, inputs: JobInputs) -> JobOutput:
    """Return the output tensors of a job that decodes or encodes. Kernels run on the calling thread."""
    assert job.action != KEEP  # kept tensors are copied in pieces instead
    tensors: dict[str, Array] = {name: reader.raw(bias) for name, (bias,) in job.copies()}
    quality: dict[str, Quality] = {}
    if job.action == DECODE:
        for linear in job.linears:
            weight: Array = decode(stored(linear, reader), name=linear.stored_as, threads=1)
            tensors[f"{linear.module}.weight"] = weight
    elif job.action == ENCODE:
        assert quantize is not None
        for module, encoded in _encode(job, reader, quantize, inputs.moves).items():
            tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in encoded.tensors.items()}
            if encoded.quality is not None:
                quality[module] = encoded.quality
        tensors |= fixed_scales(job, quantize)
    tensors |= inputs.tensors
    assert {output.name for output in job.outputs} == tensors.keys(), job.name
    return JobOutput(tensors, quality)


def _encode(job: Job, reader: Reader, quantize: Quantize, moves: Moves | None) -> dict[str, Encoded]:
    sources = [(linear, stored(linear, reader)) for linear in job.linears]
    shared = None
    if len(sources) > 1:  # inference engines fuse these and use one tensor scale for all
        shared = max(amax(source, name=linear.stored_as, threads=1) for linear, source in sources)
    method, format = method_of(job.role, quantize), quantize.format
    return {
        linear.module: encode(source, format, method=method, amax=shared, moves=moves, name=linear.stored_as, threads=1)
        for linear, source in sources
    }


def as_bytes(tensor: Array) -> memoryview:
    """Return a tensor's bytes in C order."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
