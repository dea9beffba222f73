"""Unquantized floats as BF16 rows."""

from __future__ import annotations

import numpy as np

from halfbyte.formats import checks
from halfbyte.formats.cpu.rows import Rows
from halfbyte.formats.encoded import BF16Bits, Encoded
from halfbyte.formats.format import Codec, Format
from halfbyte.formats.reference.floats import f32_to_bf16


def _read(_format: Format, encoded: Encoded, name: str) -> Rows:
    tensor = encoded.tensors["weight"]
    checks.same_shape("weight", tensor, encoded.shape, name)
    if tensor.dtype == np.uint16:  # BF16
        return Rows(encoded.shape, tensor)

    def fill(chunk: slice, out: BF16Bits) -> None:
        out[:] = f32_to_bf16(tensor[chunk].astype(np.float32))

    return Rows(encoded.shape, fill=fill)


CODEC = Codec(_read)
