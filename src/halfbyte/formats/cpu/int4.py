"""INT4 rows: decode, and encode on Kimi's or compressed-tensors' grid."""

from __future__ import annotations

import numpy as np

from halfbyte.errors import TensorError
from halfbyte.formats import checks
from halfbyte.formats.cpu.kernels import int4, rows
from halfbyte.formats.cpu.rows import EncodeOptions, PackedInt4, Rows, fill_rows
from halfbyte.formats.encoded import Array, BF16Bits, Encoded
from halfbyte.formats.format import Codec, Format


def _read(format: Format, encoded: Encoded, name: str) -> Rows:
    packed, scale = encoded.tensors["weight_packed"], encoded.tensors["weight_scale"]
    n, k = encoded.shape
    group = next((g for g in format.groups if scale.shape == (n, -(-k // g)) and k % g == 0), None)
    if group is None:
        raise TensorError(
            f"weight_scale {list(scale.shape)} does not fit {[n, k]}",
            where=name,
            fix=f"expected one scale for {', '.join(map(str, format.groups))} columns",
        )
    checks.same_shape("weight_packed", packed, (n, k // 8), name)
    checks.finite(int(rows.amax_bits(scale)), name, "scales")
    codes = np.ascontiguousarray(packed).view(np.uint8)

    def fill(chunk: slice, out: BF16Bits) -> None:
        int4.decode_rows(codes[chunk], scale[chunk], group, out)

    return Rows(encoded.shape, fill=fill, int4=PackedInt4(codes, scale, group))


def _encode(format: Format, source: Rows, options: EncodeOptions) -> Encoded:
    (n, k), group = source.shape, options.group
    packed, scale = np.empty((n, k // 2), np.uint8), np.empty((n, k // group), np.uint16)
    grid = int4.KIMI if options.method == "kimi" else int4.COMPRESSED_TENSORS

    def kernel(chunk: slice, stats: Array) -> None:
        int4.encode_rows(source.bf16(chunk), grid, group, packed[chunk], scale[chunk], stats)

    quality = fill_rows(source, options.threads, kernel)
    shape = np.array([n, k], np.int32)
    tensors = {"weight_packed": packed.view(np.int32), "weight_scale": scale, "weight_shape": shape}
    return Encoded(format.name, source.shape, tensors, quality)


CODEC = Codec(_read, _encode)
