"""Do one job: read its tensors, decode or encode them, return what its shards hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfbyte.models.linears import StoredLinear
from halfbyte.numerics.codec import amax, decode, encode
from halfbyte.numerics.encoded import Encoded, Quality
from halfbyte.numerics.formats import FORMATS
from halfbyte.numerics.reference.compensate import Moves
from halfbyte.plan.rules import DECODE, ENCODE, KEEP, Job, method_of
from halfbyte.recipe.decisions import Quantize
from halfbyte.source.read import Reader

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Done:
    """A finished job: its output tensors by name, and what encoding each linear lost."""

    tensors: Mapping[str, Array]
    quality: Mapping[str, Quality]


@dataclass(frozen=True, slots=True)
class Given:
    """What data decides in a job: tensors such as input scales, and where rounding errors go."""

    tensors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    moves: Moves | None = None


def apply(job: Job, reader: Reader, quantize: Quantize | None, given: Given) -> Done:
    """Return the output tensors of a job that changes some, with those that are given. Kernels run on this thread."""
    assert job.action != KEEP  # such a job is copied, piece by piece
    tensors: dict[str, Array] = {name: reader.raw(bias) for name, (bias,) in job.copies()}
    quality: dict[str, Quality] = {}
    if job.action == DECODE:
        for linear in job.linears:
            weight: Array = decode(stored(linear, reader), name=linear.stored_as, threads=1)
            tensors[f"{linear.module}.weight"] = weight
    elif job.action == ENCODE:
        assert quantize is not None
        for module, encoded in _encode(job, reader, quantize, given.moves).items():
            tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in encoded.tensors.items()}
            if encoded.quality is not None:
                quality[module] = encoded.quality
    tensors |= given.tensors
    assert {output.name for output in job.outputs} == tensors.keys(), job.name
    return Done(tensors, quality)


def stored(linear: StoredLinear, reader: Reader) -> Encoded:
    """Read a linear as it is stored."""
    suffixes = [part.suffix for part in FORMATS[linear.format].tensors]
    tensors = {suffix: reader.tensor(linear.parts[suffix]) for suffix in suffixes}
    return Encoded(linear.format, linear.shape, tensors)


def _encode(job: Job, reader: Reader, quantize: Quantize, moves: Moves | None) -> dict[str, Encoded]:
    sources = [(linear, stored(linear, reader)) for linear in job.linears]
    shared = None
    if len(sources) > 1:  # engines fuse these and keep one tensor scale for all of them
        shared = max(amax(source, name=linear.stored_as, threads=1) for linear, source in sources)
    method, format = method_of(job.role, quantize), quantize.format
    return {
        linear.module: encode(source, format, method=method, amax=shared, moves=moves, name=linear.stored_as, threads=1)
        for linear, source in sources
    }


def as_bytes(tensor: Array) -> memoryview:
    """Return a tensor's bytes as they are written."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
