"""FP8 rows: decode 128x128 blocks and per-row scales, encode per row."""

from __future__ import annotations

import numpy as np

from halfbyte.formats import checks
from halfbyte.formats.cpu.kernels import fp8
from halfbyte.formats.cpu.rows import EncodeOptions, Rows, fill_rows
from halfbyte.formats.encoded import Array, BF16Bits, Encoded
from halfbyte.formats.format import Codec, Format
from halfbyte.formats.reference.floats import bf16_to_f32


def _read_block(format: Format, encoded: Encoded, name: str) -> Rows:
    code, scale_inv = encoded.tensors["weight"], encoded.tensors["weight_scale_inv"]
    block = format.block
    checks.same_shape("weight", code, encoded.shape, name)
    checks.same_shape("weight_scale_inv", scale_inv, format.tensors[1].shape(*encoded.shape), name)
    checks.finite_codes(code, name)
    checks.finite_array("weight_scale_inv", scale_inv, name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        fp8.decode_block_rows(code[chunk], scale_inv[chunk.start // block :], block, out)

    return Rows(encoded.shape, fill=fill)


def _read_channel(_format: Format, encoded: Encoded, name: str) -> Rows:
    code, scale = encoded.tensors["weight"], encoded.tensors["weight_scale"]
    checks.same_shape("weight", code, encoded.shape, name)
    checks.same_shape("weight_scale", scale, (encoded.shape[0], 1), name)
    per_row = bf16_to_f32(scale) if scale.dtype == np.uint16 else scale.astype(np.float32)
    checks.finite_codes(code, name)
    checks.finite_array("weight_scale", per_row, name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        fp8.decode_channel_rows(code[chunk], per_row[chunk], out)

    return Rows(encoded.shape, fill=fill)


def _encode_channel(format: Format, source: Rows, options: EncodeOptions) -> Encoded:
    code, scale = np.empty(source.shape, np.uint8), np.empty((source.shape[0], 1), np.uint16)

    def kernel(chunk: slice, stats: Array) -> None:
        fp8.encode_channel_rows(source.bf16(chunk), code[chunk], scale[chunk], stats)

    quality = fill_rows(source, options.threads, kernel)
    return Encoded(format.name, source.shape, {"weight": code, "weight_scale": scale}, quality)


BLOCK_CODEC = Codec(_read_block)
CHANNEL_CODEC = Codec(_read_channel, _encode_channel)
