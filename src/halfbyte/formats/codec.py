"""Encode and decode whole linears: check the tensors, run kernels on chunks of rows, and sum the errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from halfbyte.errors import TensorError, UsageError
from halfbyte.formats import checks
from halfbyte.formats.cpu import (
    bf16_blocks,
    fp8,
    int4,
    int4_blocks,
    sweep_bf16,
    sweep_int4,
)
from halfbyte.formats.cpu import gptq as compensating
from halfbyte.formats.cpu.rows import ERROR, MAX_ERROR, SATURATED, SIGNAL
from halfbyte.formats.cpu.sweep import UNDECIDED
from halfbyte.formats.encoded import Array, BF16Bits, Encoded, Quality
from halfbyte.formats.reference import floats, nvfp4
from halfbyte.formats.reference import gptq as compensate
from halfbyte.formats.reference.floats import bf16_to_f32, f32_to_bf16
from halfbyte.formats.reference.sweep import best_scale
from halfbyte.formats.registry import FORMATS, Format
from halfbyte.formats.row_chunks import on_chunks
from halfbyte.formats.stored import RULES, Rows, Weights, open_rows
from halfbyte.ui.suggest import did_you_mean

DEFAULT_GROUP = 32
DIVISIONS = ("ieee", "reciprocal")  # how weight_scale_2 is computed: by division, or as in CUDA builds of PyTorch
_STATS = 4


def encode(  # noqa: PLR0913 - keyword-only, and all but `name` and `threads` affect the bytes
    weights: Weights,
    format: str,
    *,
    method: str | None = None,
    amax: float | None = None,
    division: str = "ieee",
    group: int = DEFAULT_GROUP,
    moves: compensate.Moves | None = None,
    name: str = "tensor",
    threads: int | None = None,
) -> Encoded:
    """Encode one linear [N, K].

    `amax` is the largest magnitude of all linears that share a tensor scale (gate and up do in every engine), by
    default that of this linear. An INT4 `Encoded` is converted to NVFP4 or MXFP4 without an intermediate BF16 tensor.
    `moves` are the inverse-Hessian factors for "compensated" (GPTQ), from `reference.gptq.moves`.
    """
    row = checks.known_format(format)
    method = checks.known_method(row, method)
    _check_choices(row, amax=amax, division=division, group=group)
    source = open_rows(weights, name)
    _check_moves(method, moves, source.shape, name)
    checks.matrix(source.shape, group if format == "int4" else row.block, name)
    own = source.amax_bits(threads)
    checks.finite(own, name)
    if format == "int4":
        return _encode_int4(source, method, group, threads)
    if format == "fp8_channel":
        return _encode_fp8_channel(source, threads)
    if RULES[format] in (bf16_blocks.MXFP4_QUARK, bf16_blocks.MXFP4_CT):
        return _encode_blocks(source, format, RULES[format], np.float32(1), threads)
    tensor_scale = _TensorScale(_group_amax(own, amax, name), division, name)
    if moves is not None:
        return _encode_compensated(source, moves, _value(tensor_scale.group_bits), threads)
    return _encode_nvfp4(source, format, method, tensor_scale, threads)


def _check_choices(row: Format, *, amax: float | None, division: str, group: int) -> None:
    """Raise UsageError for invalid options and for options that do not apply to the format."""
    if division not in DIVISIONS:
        raise UsageError(f"unknown division '{division}'", fix=did_you_mean(division, DIVISIONS))
    if row.groups and group not in row.groups:
        raise UsageError(f"unsupported INT4 group size {group}", fix=f"choose one of {', '.join(map(str, row.groups))}")
    has_tensor_scale = any(part.fixed is not None and part.dtype == "F32" for part in row.tensors)
    ignored = [
        ("amax", amax is not None and not has_tensor_scale),
        ("group", group != DEFAULT_GROUP and not row.groups),
    ]
    ignored.append(("division", division != DIVISIONS[0] and not has_tensor_scale))
    for option, is_set in ignored:
        if is_set:
            raise UsageError(f"'{option}' does not apply to {row.name}", fix=f"omit {option}")


def _check_moves(method: str, moves: compensate.Moves | None, shape: tuple[int, ...], name: str) -> None:
    if (moves is not None) != (method == "compensated"):
        fix = "pass both or neither"
        raise UsageError("method 'compensated' requires moves, and moves require that method", where=name, fix=fix)
    if moves is not None and moves.upper.shape != (shape[-1], shape[-1]):
        what = f"moves have {len(moves.order)} columns, but the linear has {shape[-1]}"
        raise UsageError(what, where=name, fix="compute moves from this linear's inputs")


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
    return float(_value(bits))


def _value(bits: int) -> np.float32:
    return bf16_to_f32(np.array([bits], np.uint16))[0]


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
    if not math.isfinite(number) or math.copysign(1, number) < 0 or float(_value(bits)) != number or bits < own:
        raise TensorError(
            f"amax {amax} is not a BF16 magnitude at or above the tensor's own {_value(own)}",
            where=name,
            fix="pass the largest halfbyte.amax() of the linears that share the scale",
        )
    return bits


def _quality(shape: tuple[int, int], records: list[Array]) -> Quality:
    stats = np.concatenate([record.reshape(-1, _STATS) for record in records])
    return Quality(
        weights=shape[0] * shape[1],
        signal=float(stats[:, SIGNAL].sum()),
        error=float(stats[:, ERROR].sum()),
        max_error=float(stats[:, MAX_ERROR].max()),
        saturated=int(stats[:, SATURATED].sum()),
    )


def _fill(
    source: Rows, threads: int | None, kernel: Callable[[slice, Array], None], records_per_chunk: int | None = None
) -> Quality:
    """Run an encoder on every chunk; it fills its rows of the output and its error records."""

    def work(chunk: slice) -> Array:
        stats = np.zeros((records_per_chunk or chunk.stop - chunk.start, _STATS))
        kernel(chunk, stats)
        return stats

    return _quality(source.shape, on_chunks(work, source.shape, threads))


def _encode_int4(source: Rows, method: str, group: int, threads: int | None) -> Encoded:
    n, k = source.shape
    packed, scale = np.empty((n, k // 2), np.uint8), np.empty((n, k // group), np.uint16)
    grid = int4.KIMI if method == "kimi" else int4.COMPRESSED_TENSORS

    def kernel(chunk: slice, stats: Array) -> None:
        int4.encode_rows(source.bf16(chunk), grid, group, packed[chunk], scale[chunk], stats)

    quality = _fill(source, threads, kernel)
    shape = np.array([n, k], np.int32)
    tensors = {"weight_packed": packed.view(np.int32), "weight_scale": scale, "weight_shape": shape}
    return Encoded("int4", source.shape, tensors, quality)


def _encode_fp8_channel(source: Rows, threads: int | None) -> Encoded:
    code, scale = np.empty(source.shape, np.uint8), np.empty((source.shape[0], 1), np.uint16)

    def kernel(chunk: slice, stats: Array) -> None:
        fp8.encode_channel_rows(source.bf16(chunk), code[chunk], scale[chunk], stats)

    quality = _fill(source, threads, kernel)
    return Encoded("fp8_channel", source.shape, {"weight": code, "weight_scale": scale}, quality)


def _encode_blocks(
    source: Rows, format: str, rule: int, tensor_scale: np.float32, threads: int | None, scale: Array | None = None
) -> Encoded:
    """Encode with a rule; block scales are computed unless a sweep has already chosen them."""
    row = FORMATS[format]
    n, k = source.shape
    packed = np.empty((n, k // 2), np.uint8)
    scale = np.empty((n, k // row.block), np.uint8) if scale is None else scale

    def from_bf16(chunk: slice, stats: Array) -> None:
        rows = source.bf16(chunk)
        bf16_blocks.encode_rows(rows, rule, row.block, tensor_scale, packed[chunk], scale[chunk], stats)

    def from_int4(chunk: slice, stats: Array) -> None:
        assert source.int4 is not None
        codes, steps, group = source.int4.codes[chunk], source.int4.scale[chunk], source.int4.group
        out, out_scale = packed[chunk], scale[chunk]
        int4_blocks.recode_rows(codes, steps, group, rule, row.block, tensor_scale, out, out_scale, stats[0])

    quality = _fill(source, threads, from_int4, 1) if source.int4 else _fill(source, threads, from_bf16)
    return Encoded(format, source.shape, {row.tensors[0].suffix: packed, "weight_scale": scale}, quality)


class _TensorScale(NamedTuple):
    """Inputs of the tensor scale, and the tensor's name for errors."""

    group_bits: int
    division: str
    name: str


def _encode_nvfp4(source: Rows, format: str, method: str, choice: _TensorScale, threads: int | None) -> Encoded:
    group_bits, division, name = choice
    group_amax = _value(group_bits)
    if method == "compressed-tensors":
        tensor_scale = nvfp4.global_scale(group_amax)
        encoded = _encode_blocks(source, format, bf16_blocks.NVFP4_CT, tensor_scale, threads)
    else:
        tensor_scale = nvfp4.tensor_scale(group_amax, division=division)
        rule, scale = bf16_blocks.NVFP4_MAX, None
        if method == "mse":
            rule, scale = bf16_blocks.NVFP4_GIVEN, _sweep(source, group_bits, threads)
        encoded = _encode_blocks(source, format, rule, tensor_scale, threads, scale)
    if format == "nvfp4":
        tensors = {**encoded.tensors, "weight_scale_2": np.array(tensor_scale, np.float32)}
    else:
        if method != "compressed-tensors":
            with np.errstate(over="ignore"):
                tensor_scale = nvfp4.CODE_RANGE / (group_amax or nvfp4.ZERO_TENSOR_AMAX)
            if not np.isfinite(tensor_scale):
                what = f"the global scale 2688 / {group_amax} overflows FP32"
                raise TensorError(what, where=name, fix="encode to nvfp4, or keep this tensor: its values are tiny")
        tensors = {**encoded.tensors, "weight_global_scale": np.array([tensor_scale], np.float32)}
    return Encoded(format, source.shape, tensors, encoded.quality)


def _encode_compensated(source: Rows, moves: compensate.Moves, group_amax: np.float32, threads: int | None) -> Encoded:
    n, k = source.shape
    packed, scale = np.empty((n, k // 2), np.uint8), np.empty((n, k // nvfp4.BLOCK), np.uint8)
    scale_2 = compensate.tensor_scale(group_amax)

    def kernel(chunk: slice, stats: Array) -> None:
        exact = bf16_to_f32(source.bf16(chunk))
        target, codes, scales = exact.astype(np.float64), packed[chunk], scale[chunk]
        compensating.compensate_rows(target, moves.order, moves.upper, scale_2, codes, scales)
        step = floats.spread(floats.E4M3_VALUES[scales] * scale_2, nvfp4.BLOCK)
        error = np.abs(exact - floats.e2m1_decode(floats.unpack_nibbles(codes)) * step)
        stats[:, SIGNAL], stats[:, ERROR] = (np.square(values, dtype=np.float64).sum(1) for values in (exact, error))
        stats[:, MAX_ERROR], stats[:, SATURATED] = error.max(1), (np.abs(exact) > nvfp4.E2M1_MAX * step).sum(1)

    quality = _fill(source, threads, kernel)
    tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": np.array(scale_2, np.float32)}
    return Encoded("nvfp4", source.shape, tensors, quality)


def _sweep(source: Rows, group_bits: int, threads: int | None) -> Array:
    """Return the block scales with the smallest loss; the few blocks that FP64 cannot decide use exact integers."""
    n, k = source.shape
    scale = np.ones((n, k // nvfp4.BLOCK), np.uint8)
    if group_bits == 0:
        return scale  # all zeros: every loss is 0, and the smallest scale wins
    bits = np.uint16(group_bits)

    def work(chunk: slice) -> None:
        if source.int4 is not None:
            packed = source.int4
            sweep_int4.sweep_rows(packed.codes[chunk], packed.scale[chunk], packed.group, bits, scale[chunk])
        else:
            sweep_bf16.sweep_blocks(source.bf16(chunk).reshape(-1), bits, scale[chunk].reshape(-1))
        for r, b in np.argwhere(scale[chunk] == UNDECIDED):
            row = source.bf16(slice(chunk.start + int(r), chunk.start + int(r) + 1))[0]
            block = bf16_to_f32(row[b * nvfp4.BLOCK : (b + 1) * nvfp4.BLOCK])
            scale[chunk.start + r, b] = best_scale(block, float(_value(group_bits)))

    on_chunks(work, source.shape, threads)
    return scale
