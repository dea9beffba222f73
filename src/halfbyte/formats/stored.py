"""Stored linears as BF16 rows: check the tensors once, then decode chunks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from halfbyte.errors import TensorError
from halfbyte.formats import checks
from halfbyte.formats.cpu import (
    bf16_blocks,
    fp8,
    int4,
    int4_blocks,
    rows,
)
from halfbyte.formats.encoded import Array, BF16Bits, Encoded, bf16_bits
from halfbyte.formats.reference.floats import bf16_to_f32, f32_to_bf16
from halfbyte.formats.registry import FORMATS
from halfbyte.formats.row_chunks import on_chunks

Weights = Any  # BF16 patterns, FP32 values, a PyTorch tensor, or an Encoded

RULES = {
    "nvfp4": bf16_blocks.NVFP4_MAX,
    "nvfp4_ct": bf16_blocks.NVFP4_CT,
    "mxfp4": bf16_blocks.MXFP4_QUARK,
    "mxfp4_ct": bf16_blocks.MXFP4_CT,
}


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """INT4 rows for direct conversion: bytes [N, K / 2] and BF16 scales [N, K / group]."""

    codes: Array
    scale: Array
    group: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A linear [N, K] with access to any slice of its rows in BF16, from `bits` or decoded by `fill`."""

    shape: tuple[int, int]
    bits: BF16Bits | None = None
    fill: Callable[[slice, BF16Bits], None] | None = None
    int4: PackedInt4 | None = None

    def bf16(self, chunk: slice) -> BF16Bits:
        """Return some rows; decoded rows are in a new array."""
        if self.bits is not None:
            return self.bits[chunk]
        start, stop, _ = chunk.indices(self.shape[0])
        out = np.empty((stop - start, self.shape[1]), np.uint16)
        self.copy_to(out, chunk)
        return out

    def copy_to(self, out: BF16Bits, chunk: slice) -> None:
        """Write some rows into an array."""
        if self.fill is None:
            assert self.bits is not None
            out[:] = self.bits[chunk]
        else:
            self.fill(chunk, out)

    def amax_bits(self, threads: int | None) -> int:
        """Return the largest BF16 magnitude pattern; at or above 0x7F80 it is not finite."""

        def work(chunk: slice) -> int:
            if self.int4 is not None:
                return int(int4_blocks.amax_bits(self.int4.codes[chunk], self.int4.scale[chunk]))
            return int(rows.amax_bits(self.bf16(chunk)))

        return max(on_chunks(work, self.shape, threads))


def open_rows(weights: Weights, name: str) -> Rows:
    """Check the weights and return their rows."""
    if not isinstance(weights, Encoded):
        bits = bf16_bits(weights, name)
        checks.matrix(bits.shape, 0, name)
        return Rows((bits.shape[0], bits.shape[1]), bits)
    row = checks.known_format(weights.format)
    checks.matrix(weights.shape, row.block if row.element == "e2m1" else 0, name)
    shape = (int(weights.shape[0]), int(weights.shape[1]))
    tensors = checks.parts(row, weights.tensors, name)
    if "weight_shape" in weights.tensors and [int(n) for n in weights.tensors["weight_shape"]] != [*shape]:
        declared = [int(n) for n in weights.tensors["weight_shape"]]
        raise TensorError(f"weight_shape says {declared}, not {[*shape]}", where=name, fix="check the source file")
    return _READERS[weights.format](Encoded(weights.format, shape, tensors), name)


def _read_plain(encoded: Encoded, name: str) -> Rows:
    tensor = encoded.tensors["weight"]
    checks.same_shape("weight", tensor, encoded.shape, name)
    if encoded.format == "bf16":
        return Rows(encoded.shape, tensor)

    def fill(chunk: slice, out: BF16Bits) -> None:
        out[:] = f32_to_bf16(tensor[chunk].astype(np.float32))

    return Rows(encoded.shape, fill=fill)


def _read_int4(encoded: Encoded, name: str) -> Rows:
    packed, scale = encoded.tensors["weight_packed"], encoded.tensors["weight_scale"]
    n, k = encoded.shape
    groups = FORMATS["int4"].groups
    group = next((g for g in groups if scale.shape == (n, -(-k // g)) and k % g == 0), None)
    if group is None:
        raise TensorError(
            f"weight_scale {list(scale.shape)} does not fit {[n, k]}",
            where=name,
            fix=f"expected one scale for {', '.join(map(str, groups))} columns",
        )
    checks.same_shape("weight_packed", packed, (n, k // 8), name)
    checks.finite(int(rows.amax_bits(scale)), name, "scales")
    codes = np.ascontiguousarray(packed).view(np.uint8)

    def fill(chunk: slice, out: BF16Bits) -> None:
        int4.decode_rows(codes[chunk], scale[chunk], group, out)

    return Rows(encoded.shape, fill=fill, int4=PackedInt4(codes, scale, group))


def _read_fp8_block(encoded: Encoded, name: str) -> Rows:
    code, scale_inv = encoded.tensors["weight"], encoded.tensors["weight_scale_inv"]
    row = FORMATS["fp8_block"]
    checks.same_shape("weight", code, encoded.shape, name)
    checks.same_shape("weight_scale_inv", scale_inv, row.tensors[1].shape(*encoded.shape), name)
    checks.finite_codes(code, name)
    checks.finite_array("weight_scale_inv", scale_inv, name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        fp8.decode_block_rows(code[chunk], scale_inv[chunk.start // row.block :], row.block, out)

    return Rows(encoded.shape, fill=fill)


def _read_fp8_channel(encoded: Encoded, name: str) -> Rows:
    code, scale = encoded.tensors["weight"], encoded.tensors["weight_scale"]
    checks.same_shape("weight", code, encoded.shape, name)
    checks.same_shape("weight_scale", scale, (encoded.shape[0], 1), name)
    # compressed-tensors writes the scale in the dtype of the weights; other tools write F32.
    per_row = bf16_to_f32(scale) if scale.dtype == np.uint16 else scale.astype(np.float32)
    checks.finite_codes(code, name)
    checks.finite_array("weight_scale", per_row, name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        fp8.decode_channel_rows(code[chunk], per_row[chunk], out)

    return Rows(encoded.shape, fill=fill)


def _read_blocks(encoded: Encoded, name: str) -> Rows:
    row = FORMATS[encoded.format]
    packed, scale = (encoded.tensors[part.suffix] for part in row.tensors[:2])
    for part, tensor in zip(row.tensors[:2], (packed, scale), strict=True):
        checks.same_shape(part.suffix, tensor, part.shape(*encoded.shape), name)
    checks.no_nan_scale(row, scale, name)
    rule, tensor_scale = RULES[encoded.format], np.float32(1)
    for part in row.tensors[2:]:
        tensor_scale = checks.one_scale(part.suffix, encoded.tensors[part.suffix], name)

    def fill(chunk: slice, out: BF16Bits) -> None:
        bf16_blocks.decode_rows(packed[chunk], scale[chunk], rule, row.block, tensor_scale, out)

    return Rows(encoded.shape, fill=fill)


_READERS: dict[str, Callable[[Encoded, str], Rows]] = {
    **dict.fromkeys(("bf16", "f16", "f32"), _read_plain),
    "int4": _read_int4,
    "fp8_block": _read_fp8_block,
    "fp8_channel": _read_fp8_channel,
    **dict.fromkeys(RULES, _read_blocks),
}
