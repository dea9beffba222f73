"""Encode and decode whole linears on the CPU: check the tensors, then run the format's codec on chunks of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from halfbyte.errors import TensorError, UsageError
from halfbyte.formats import checks
from halfbyte.formats.cpu.rows import EncodeOptions, Rows, on_chunks
from halfbyte.formats.encoded import BF16Bits, Encoded, bf16_bits
from halfbyte.formats.format import Format
from halfbyte.formats.reference.floats import f32_to_bf16, value_of_bf16
from halfbyte.formats.reference.gptq import Factors
from halfbyte.formats.registry import FORMATS
from halfbyte.ui.suggest import did_you_mean

Weights = Any  # BF16 patterns, FP32 values, a PyTorch tensor, or an Encoded

for _format in FORMATS.values():
    _format.cpu()  # loads the kernels here, not in the first job of a run

DEFAULT_GROUP = 32
DIVISIONS = ("ieee", "reciprocal")  # how weight_scale_2 is computed: by division, or as in CUDA builds of PyTorch


def encode(  # noqa: PLR0913 - keyword-only, and all but `name` and `threads` affect the bytes
    weights: Weights,
    format: str,
    *,
    method: str | None = None,
    amax: float | None = None,
    division: str = "ieee",
    group: int = DEFAULT_GROUP,
    factors: Factors | None = None,
    name: str = "tensor",
    threads: int | None = None,
) -> Encoded:
    """Encode one linear [N, K].

    `amax` is the largest magnitude of all linears that share a tensor scale (gate and up do in every engine), by
    default that of this linear. An INT4 `Encoded` is converted to NVFP4 or MXFP4 without an intermediate BF16 tensor.
    `factors` are the inverse-Hessian factors for "gptq", from `reference.gptq.factor`.
    """
    row = checks.known_format(format)
    method = checks.known_method(row, method)
    _check_choices(row, amax=amax, division=division, group=group)
    source = open_rows(weights, name)
    _check_factors(method, factors, source.shape, name)
    checks.matrix(source.shape, group if row.groups else row.block, name)
    own = source.amax_bits(threads)
    checks.finite(own, name)
    encode_rows = row.cpu().encode
    assert encode_rows is not None  # `known_method` refuses read-only formats
    options = EncodeOptions(
        method=method,
        amax_bits=_group_amax(own, amax, name),
        division=division,
        group=group,
        factors=factors,
        name=name,
        threads=threads,
    )
    return encode_rows(row, source, options)


def open_rows(weights: Weights, name: str) -> Rows:
    """Check the weights and return their rows."""
    if not isinstance(weights, Encoded):
        bits = bf16_bits(weights, name)
        checks.matrix(bits.shape, 0, name)
        return Rows((bits.shape[0], bits.shape[1]), bits)
    row = checks.known_format(weights.format)
    checks.matrix(weights.shape, 0 if row.groups or row.partial_blocks else row.block, name)
    shape = (int(weights.shape[0]), int(weights.shape[1]))
    tensors = checks.parts(row, weights.tensors, name)
    if "weight_shape" in weights.tensors and [int(n) for n in weights.tensors["weight_shape"]] != [*shape]:
        declared = [int(n) for n in weights.tensors["weight_shape"]]
        raise TensorError(f"weight_shape says {declared}, not {[*shape]}", where=name, fix="check the source file")
    return row.cpu().read(row, Encoded(weights.format, shape, tensors), name)


def _check_choices(row: Format, *, amax: float | None, division: str, group: int) -> None:
    """Raise UsageError for invalid options and for options that do not apply to the format."""
    if division not in DIVISIONS:
        raise UsageError(f"unknown division '{division}'", fix=did_you_mean(division, DIVISIONS))
    if row.groups and group not in row.groups:
        raise UsageError(f"unsupported INT4 group size {group}", fix=f"choose one of {', '.join(map(str, row.groups))}")
    ignored = [
        ("amax", amax is not None and not row.has_tensor_scale),
        ("group", group != DEFAULT_GROUP and not row.groups),
    ]
    ignored.append(("division", division != DIVISIONS[0] and not row.has_tensor_scale))
    for option, is_set in ignored:
        if is_set:
            raise UsageError(f"'{option}' does not apply to {row.name}", fix=f"omit {option}")


def _check_factors(method: str, factors: Factors | None, shape: tuple[int, ...], name: str) -> None:
    if (factors is not None) != (method == "gptq"):
        fix = "pass both or neither"
        raise UsageError("method 'gptq' requires factors, and factors require that method", where=name, fix=fix)
    if factors is not None and factors.upper.shape != (shape[-1], shape[-1]):
        what = f"factors have {len(factors.order)} columns, but the linear has {shape[-1]}"
        raise UsageError(what, where=name, fix="compute factors from this linear's inputs")


def decode(
    encoded: Encoded, *, out: BF16Bits | None = None, name: str = "tensor", threads: int | None = None
) -> BF16Bits:
    """Decode to BF16 bit patterns [N, K], into `out` if given, which avoids page faults of a new array."""
    source = open_rows(encoded, name)
    target = np.empty(source.shape, np.uint16) if out is None else out
    if (
        target.shape != source.shape
        or target.dtype != np.uint16
        or not (target.flags.c_contiguous and target.flags.writeable)
    ):
        raise TensorError(
            f"out is not a contiguous uint16 array of {list(source.shape)}", where=name, fix="pass such an array"
        )
    on_chunks(lambda chunk: source.copy_to(target[chunk], chunk), source.shape, threads)
    return target


def amax(weights: Weights, *, name: str = "tensor", threads: int | None = None) -> float:
    """Return a linear's amax; for linears that share a tensor scale, pass the maximum to `encode`."""
    bits = open_rows(weights, name).amax_bits(threads)
    checks.finite(bits, name)
    return float(value_of_bf16(bits))


def _group_amax(own: int, amax: float | None, name: str) -> int:
    """Return the BF16 pattern of the amax that determines the tensor scale."""
    if amax is None:
        return own
    try:
        number = float(amax)
    except (TypeError, ValueError):
        number = math.nan
    with np.errstate(over="ignore"):
        bits = int(f32_to_bf16(np.array([number], np.float32))[0])
    # As bit patterns, negative numbers are larger than all positive ones. Minus zero is invalid too.
    if not math.isfinite(number) or math.copysign(1, number) < 0 or float(value_of_bf16(bits)) != number or bits < own:
        raise TensorError(
            f"amax {amax} is not a BF16 magnitude at or above the tensor's own {value_of_bf16(own)}",
            where=name,
            fix="pass the largest halfbyte.amax() of the linears that share the scale",
        )
    return bits
