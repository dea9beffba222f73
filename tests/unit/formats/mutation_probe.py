"""Run one encoder on a small hard matrix and compare with the reference; exit 1 if they differ.

Called by test_mutations.py on a damaged copy of the package (PYTHONPATH), never collected as a test.
"""

import sys

import numpy as np

from halfbyte.formats.codec import decode, encode
from halfbyte.formats.reference import (
    floats,
    fp8,
    int4,
    mxfp4,
    nvfp4,
    sweep,
)


def weights():
    """Quotients on every threshold, both signs, zero blocks, blocks of very different size, blocks that gain by
    clipping, ties.
    """
    steps = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 0.2, 0.7, 1.2, 1.7, 2.4, 3.4, 4.9, 0])
    row = np.concatenate([steps, -steps, steps * 2**-9, -steps * 2**-9, steps * 448, steps * -448, steps * 1e-7, steps])
    clipped = np.tile(np.float32([6] * 15 + [7.5]), row.size // 16)
    lonely = np.float32(np.arange(row.size) % 16 == 3) * 3  # many scales give a lone weight without error
    lonely[:32] = 0
    rng = np.random.default_rng(3)
    gaussian = rng.standard_normal((6, row.size)).astype(np.float32)
    return floats.f32_to_bf16(
        np.concatenate([row[None, :], clipped[None, :], lonely[None, :], gaussian, gaussian * np.float32(2**-12)])
    )


def expected(w, what):
    top = np.abs(floats.bf16_to_f32(w)).max()
    match what:
        case "nvfp4":
            return nvfp4.encode_max(w, nvfp4.tensor_scale(top))
        case "nvfp4_ct":
            return nvfp4.encode_compressed_tensors(w, nvfp4.global_scale(top))
        case "mse":
            scale = sweep.block_scale_mse(w, top)
            return nvfp4.codes(w, scale, nvfp4.tensor_scale(top)), scale
        case "mxfp4":
            return mxfp4.encode(w, keep_negative_zero=False)
        case "mxfp4_ct":
            return mxfp4.encode(w, keep_negative_zero=True)
        case "fp8_channel":
            return fp8.encode_channel(w)
        case "int4":
            return int4.encode_kimi(w)
        case _:
            return int4.encode_compressed_tensors(w)


FORMAT = {
    "mse": ("nvfp4", "mse"),
    "int4_ct": ("int4", "compressed-tensors"),
    "nvfp4_ct": ("nvfp4_ct", "compressed-tensors"),
}


def main(what, source):
    w = weights()
    stored = w
    if source == "int4":
        packed, scale = int4.encode_kimi(w)
        w = int4.decode(packed, scale)
        shape = np.int32(w.shape)
        from halfbyte.formats.encoded import Encoded

        stored = Encoded("int4", w.shape, {"weight_packed": packed, "weight_scale": scale, "weight_shape": shape})
    format, method = FORMAT.get(what, (what, None))
    if what == "decode":
        return bool((decode(stored) != w).any())
    first, second, *_ = encode(stored, format, method=method).tensors.values()
    codes, scale = expected(w, what)
    return bool((first != codes).any() or (second != scale).any())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
