"""NVFP4 and MXFP4 rows in all spellings: they share the kernels, which take a scale rule."""

from __future__ import annotations

from functools import partial

import numpy as np

from halfbyte.errors import TensorError
from halfbyte.formats import checks
from halfbyte.formats.cpu.kernels import bf16_blocks, int4_blocks, sweep_bf16, sweep_int4
from halfbyte.formats.cpu.kernels import gptq as gptq_kernels
from halfbyte.formats.cpu.kernels.rows import ERROR, MAX_ERROR, SATURATED, SIGNAL
from halfbyte.formats.cpu.kernels.sweep import UNDECIDED
from halfbyte.formats.cpu.rows import EncodeOptions, Rows, fill_rows, on_chunks
from halfbyte.formats.encoded import Array, BF16Bits, Encoded, Quality
from halfbyte.formats.format import Codec, Format
from halfbyte.formats.reference import floats, gptq, nvfp4
from halfbyte.formats.reference.floats import bf16_to_f32, value_of_bf16
from halfbyte.formats.reference.sweep import best_scale


def _read(rule: int, format: Format, encoded: Encoded, name: str) -> Rows:
    packed, scale = (encoded.tensors[part.suffix] for part in format.tensors[:2])
    for part, tensor in zip(format.tensors[:2], (packed, scale), strict=True):
        checks.same_shape(part.suffix, tensor, part.shape(*encoded.shape), name)
    checks.no_nan_scale(format, scale, name)
    tensor_scale = np.float32(1)
    for part in format.tensors[2:]:
        tensor_scale = checks.one_scale(part.suffix, encoded.tensors[part.suffix], name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        bf16_blocks.decode_rows(packed[chunk], scale[chunk], rule, format.block, tensor_scale, out)

    return Rows(encoded.shape, fill=fill)


def _blocks(
    source: Rows, block: int, rule: int, tensor_scale: np.float32, threads: int | None, scale: Array | None = None
) -> tuple[Array, Array, Quality]:
    """Return codes and block scales; the scales are computed unless a sweep has already chosen them."""
    n, k = source.shape
    packed = np.empty((n, k // 2), np.uint8)
    scale = np.empty((n, k // block), np.uint8) if scale is None else scale

    def from_bf16(chunk: slice, stats: Array) -> None:
        rows = source.bf16(chunk)
        bf16_blocks.encode_rows(rows, rule, block, tensor_scale, packed[chunk], scale[chunk], stats)

    def from_int4(chunk: slice, stats: Array) -> None:
        assert source.int4 is not None
        codes, steps, group = source.int4.codes[chunk], source.int4.scale[chunk], source.int4.group
        out, out_scale = packed[chunk], scale[chunk]
        int4_blocks.recode_rows(codes, steps, group, rule, block, tensor_scale, out, out_scale, stats[0])

    quality = fill_rows(source, threads, from_int4, 1) if source.int4 else fill_rows(source, threads, from_bf16)
    return packed, scale, quality


def _encoded(format: Format, source: Rows, tensors: tuple[Array, ...], quality: Quality) -> Encoded:
    return Encoded(format.name, source.shape, dict(zip(format.suffixes, tensors, strict=True)), quality)


def _encode_mxfp4(rule: int, format: Format, source: Rows, options: EncodeOptions) -> Encoded:
    packed, scale, quality = _blocks(source, format.block, rule, np.float32(1), options.threads)
    return _encoded(format, source, (packed, scale), quality)


def _encode_modelopt(format: Format, source: Rows, options: EncodeOptions) -> Encoded:
    """NVFP4 in ModelOpt's arithmetic and spelling."""
    if options.factors is not None:
        return _encode_gptq(format, source, options, options.factors)
    packed, scale, quality = _modelopt_blocks(format, source, options)
    tensor_scale = nvfp4.tensor_scale(value_of_bf16(options.amax_bits), division=options.division)
    return _encoded(format, source, (packed, scale, np.array(tensor_scale, np.float32)), quality)


def _modelopt_blocks(format: Format, source: Rows, options: EncodeOptions) -> tuple[Array, Array, Quality]:
    tensor_scale = nvfp4.tensor_scale(value_of_bf16(options.amax_bits), division=options.division)
    rule, scale = bf16_blocks.NVFP4_MAX, None
    if options.method == "mse":
        rule, scale = bf16_blocks.NVFP4_GIVEN, _sweep(source, options.amax_bits, options.threads)
    return _blocks(source, format.block, rule, tensor_scale, options.threads, scale)


def _encode_compressed_tensors(format: Format, source: Rows, options: EncodeOptions) -> Encoded:
    """NVFP4 in compressed-tensors' spelling, in its own arithmetic or ModelOpt's."""
    amax = value_of_bf16(options.amax_bits)
    if options.method == "compressed-tensors":
        global_scale = nvfp4.global_scale(amax)
        packed, scale, quality = _blocks(source, format.block, bf16_blocks.NVFP4_CT, global_scale, options.threads)
    else:
        packed, scale, quality = _modelopt_blocks(format, source, options)
        with np.errstate(over="ignore"):
            global_scale = nvfp4.CODE_RANGE / (amax or nvfp4.ZERO_TENSOR_AMAX)
        if not np.isfinite(global_scale):
            what = f"the global scale 2688 / {amax} overflows FP32"
            fix = "encode to nvfp4, or keep this tensor: its values are tiny"
            raise TensorError(what, where=options.name, fix=fix)
    return _encoded(format, source, (packed, scale, np.array([global_scale], np.float32)), quality)


def _encode_gptq(format: Format, source: Rows, options: EncodeOptions, factors: gptq.Factors) -> Encoded:
    n, k = source.shape
    packed, scale = np.empty((n, k // 2), np.uint8), np.empty((n, k // nvfp4.BLOCK), np.uint8)
    scale_2 = gptq.tensor_scale(value_of_bf16(options.amax_bits))

    def kernel(chunk: slice, stats: Array) -> None:
        exact = bf16_to_f32(source.bf16(chunk))
        target, codes, scales = exact.astype(np.float64), packed[chunk], scale[chunk]
        gptq_kernels.compensate_rows(target, factors.order, factors.upper, scale_2, codes, scales)
        step = floats.spread(floats.E4M3_VALUES[scales] * scale_2, nvfp4.BLOCK)
        error = np.abs(exact - floats.e2m1_decode(floats.unpack_nibbles(codes)) * step)
        stats[:, SIGNAL], stats[:, ERROR] = (np.square(values, dtype=np.float64).sum(1) for values in (exact, error))
        stats[:, MAX_ERROR], stats[:, SATURATED] = error.max(1), (np.abs(exact) > nvfp4.E2M1_MAX * step).sum(1)

    quality = fill_rows(source, options.threads, kernel)
    return _encoded(format, source, (packed, scale, np.array(scale_2, np.float32)), quality)


def _sweep(source: Rows, amax_bits: int, threads: int | None) -> Array:
    """Return the block scales with the smallest loss; the few blocks that FP64 cannot decide use exact integers."""
    n, k = source.shape
    scale = np.ones((n, k // nvfp4.BLOCK), np.uint8)
    if amax_bits == 0:
        return scale  # all zeros: every loss is 0, and the smallest scale wins
    bits = np.uint16(amax_bits)

    def work(chunk: slice) -> None:
        if source.int4 is not None:
            packed = source.int4
            sweep_int4.sweep_rows(packed.codes[chunk], packed.scale[chunk], packed.group, bits, scale[chunk])
        else:
            sweep_bf16.sweep_blocks(source.bf16(chunk).reshape(-1), bits, scale[chunk].reshape(-1))
        for r, b in np.argwhere(scale[chunk] == UNDECIDED):
            row = source.bf16(slice(chunk.start + int(r), chunk.start + int(r) + 1))[0]
            block = bf16_to_f32(row[b * nvfp4.BLOCK : (b + 1) * nvfp4.BLOCK])
            scale[chunk.start + r, b] = best_scale(block, float(value_of_bf16(amax_bits)))

    on_chunks(work, source.shape, threads)
    return scale


NVFP4 = Codec(partial(_read, bf16_blocks.NVFP4_MAX), _encode_modelopt)
NVFP4_CT = Codec(partial(_read, bf16_blocks.NVFP4_CT), _encode_compressed_tensors)
MXFP4 = Codec(partial(_read, bf16_blocks.MXFP4_QUARK), partial(_encode_mxfp4, bf16_blocks.MXFP4_QUARK))
MXFP4_CT = Codec(partial(_read, bf16_blocks.MXFP4_CT), partial(_encode_mxfp4, bf16_blocks.MXFP4_CT))
