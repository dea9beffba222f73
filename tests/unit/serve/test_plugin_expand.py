"""Weights expanded by the plugin equal those of a BF16 recipe, for every code under every scale."""

import numpy as np
import pytest
import torch

from halfbyte.errors import UsageError
from halfbyte.formats.codec import decode
from halfbyte.formats.encoded import Encoded, array_to_torch
from halfbyte.formats.registry import FORMATS
from halfbyte.serve.vllm_plugin.packed_tensors import expand

EVERY_BYTE = np.arange(256, dtype=np.uint8)
E4M3 = EVERY_BYTE[(EVERY_BYTE & 0x7F) != 0x7F]  # without NaN
E8M0 = EVERY_BYTE[:-1]
BF16 = np.arange(0, 0x7F80, 7, dtype=np.uint16)  # positive and finite, every seventh


def fp4(suffix, scales, block, **more):
    """All sixteen codes, and all pairs of them over the rows, for each scale."""
    codes = np.tile(EVERY_BYTE.reshape(-1, block // 2), (len(scales), 1))
    rows = np.repeat(scales, 256 // (block // 2))
    return {suffix: codes, "weight_scale": rows[:, None].astype(np.uint8), **more}


def fp8(scale_suffix, scale):
    return {"weight": np.tile(E4M3, (len(scale), 1)), scale_suffix: scale}


def int4():
    random = np.random.default_rng(0)
    packed = random.integers(-(2**31), 2**31, (len(BF16), 4), dtype=np.int64).astype(np.int32)
    return {"weight_packed": packed, "weight_scale": BF16[:, None], "weight_shape": np.array([len(BF16), 32], np.int32)}


def blocks():
    random = np.random.default_rng(0)
    return {
        "weight": random.choice(E4M3, (200, 300)),
        "weight_scale_inv": np.float32(random.lognormal(0, 3, (2, 3))),
    }


SCALES = [np.float32(1 / 2688), np.float32(0.0123), np.float32(3e-30)]
CASES = [
    *(("nvfp4", fp4("weight", E4M3, 16, weight_scale_2=np.array(s))) for s in SCALES),
    *(("nvfp4_ct", fp4("weight_packed", E4M3, 16, weight_global_scale=np.array([1 / s]))) for s in SCALES),
    ("mxfp4", fp4("weight", E8M0, 32)),
    ("mxfp4_ct", fp4("weight_packed", E8M0, 32)),
    ("fp8_channel", fp8("weight_scale", BF16[:, None])),
    ("fp8_channel", fp8("weight_scale", np.float32(np.random.default_rng(1).lognormal(0, 5, (64, 1))))),
    ("fp8_block", blocks()),
    ("int4", int4()),
]


def as_stored(format, arrays):
    dtypes = {part.suffix: part.dtype for part in FORMATS[format].tensors}
    if format == "fp8_channel" and arrays["weight_scale"].dtype == np.float32:
        dtypes["weight_scale"] = "F32"
    return {suffix: array_to_torch(array, dtypes[suffix]) for suffix, array in arrays.items()}


@pytest.mark.parametrize(("format", "arrays"), CASES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_expansion_matches_the_codec_bit_for_bit(format, arrays, device):
    first = FORMATS[format].tensors[0]
    rows, columns = arrays[first.suffix].shape
    expected = decode(Encoded(format, (rows, columns * first.columns), arrays))
    tensors = {suffix: tensor.to(device) for suffix, tensor in as_stored(format, arrays).items()}
    found = expand(format, tensors).cpu()
    assert found.dtype == torch.bfloat16
    assert found.view(torch.int16).numpy().view(np.uint16).tobytes() == expected.tobytes()


def test_a_format_without_a_decoder_is_named():
    with pytest.raises(UsageError, match="nf4 cannot be emulated"):
        expand("nf4", {"weight": torch.zeros(1, 1)})
