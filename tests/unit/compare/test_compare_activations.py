"""Activations through FP4 in PyTorch, compared with the codec: the same values for any input."""

import numpy as np
import pytest
import torch

from halfbyte.compare.models import fp8
from halfbyte.formats.codec import decode, encode
from halfbyte.formats.emulated_activations import mxfp4, nvfp4
from halfbyte.formats.encoded import array_to_torch
from halfbyte.formats.reference import nvfp4 as reference
from halfbyte.formats.reference.floats import E4M3_VALUES, e4m3_encode

ROWS, COLUMNS = 96, 128


def _bits(values):
    return torch.from_numpy(np.asarray(values, np.float32)).to(torch.bfloat16)


def _random(seed=0):
    random = np.random.default_rng(seed)
    return _bits(
        random.standard_normal((ROWS, COLUMNS)) * np.exp(random.normal(0, 3, (ROWS, COLUMNS // 16)).repeat(16, 1))
    )


def _ties(step):
    """Every quarter step between two codes or on one, both signs, in blocks whose maximum is 6 steps."""
    quarters = np.arange(32) * 0.25 - 4
    return _bits(np.tile(np.concatenate([quarters, [6.0] * 32, -quarters, [-6.0] * 32]), (4, 1)) * step)


def _hostile():
    random = np.random.default_rng(1)
    rows = np.zeros((13, COLUMNS), np.float32)
    rows[1] = -0.0
    rows[2, ::16] = 1e-30
    rows[3] = random.standard_normal(COLUMNS) * 1e30
    rows[4, 5] = -3e38
    rows[5] = 2.0**-133  # a subnormal of BF16
    rows[6, :16] = 1e-4
    rows[6, 16:32] = 1e4
    rows[7] = -1e-7
    rows[7, 0] = 1
    rows[8] = 1.75 * 2.0 ** np.arange(-64, 64)
    rows[9] = np.nextafter(np.float32(1.75), np.float32(0))
    rows[10] = 448
    rows[11] = random.choice([-1, 1], COLUMNS) * 0.5
    rows[12] = np.arange(COLUMNS) % 8 * 2.0**-128  # under the smallest power of two that MXFP4 has
    return _bits(rows)


INPUTS = {"random": _random(), "ties": _ties(1.0), "small ties": _ties(2.0**-20), "hostile": _hostile()}
each_input = pytest.mark.parametrize("name", INPUTS)


@each_input
@pytest.mark.parametrize("format", ["mxfp4", "mxfp4_ct"])
def test_mxfp4_matches_the_codec(name, format):
    x = INPUTS[name]
    expected = array_to_torch(decode(encode(x, format)), "BF16")
    for dtype in (torch.bfloat16, torch.float32):
        result = mxfp4(x.to(dtype))
        assert result.dtype == dtype
        assert torch.equal(result.to(torch.bfloat16), expected)
    assert torch.equal(mxfp4(x.float()), expected.float())  # exact in BF16: nothing was rounded on the way


@each_input
def test_nvfp4_matches_the_codec_with_the_tensor_maximum(name):
    x = INPUTS[name]
    encoded = encode(x, "nvfp4")
    scale = torch.tensor(float(encoded.tensors["weight_scale_2"]))
    expected = array_to_torch(decode(encoded), "BF16")
    for dtype in (torch.bfloat16, torch.float32):
        assert torch.equal(nvfp4(x.to(dtype), scale).to(torch.bfloat16), expected)


@each_input
@pytest.mark.parametrize("amax", [1e-3, 0.7, 6.0, 5e4])
def test_nvfp4_saturates_as_the_reference_where_the_calibrated_maximum_is_too_small(name, amax):
    x = INPUTS[name]
    scale = reference.tensor_scale(np.float32(amax))
    packed, blocks = reference.encode_max(x.view(torch.uint16).numpy(), scale)
    expected = array_to_torch(reference.decode(packed, blocks, scale), "BF16")
    assert torch.equal(nvfp4(x, torch.tensor(scale)), expected)


def test_too_large_values_stop_at_the_largest_that_the_scale_allows():
    result = nvfp4(torch.full((1, 16), 100.0), torch.tensor(1 / 2688))
    assert torch.allclose(result, torch.ones(1, 16))


def test_any_leading_shape():
    x = torch.randn(2, 3, 64)
    assert torch.equal(mxfp4(x), mxfp4(x.view(6, 64)).view(2, 3, 64))
    assert torch.equal(nvfp4(x, torch.tensor(0.01)), nvfp4(x.view(6, 64), torch.tensor(0.01)).view(2, 3, 64))


@pytest.mark.parametrize("scale", [1.0, 0.03, 7.0])
def test_the_kv_cache_is_e4m3_and_saturates(scale):
    x = torch.cat([torch.randn(4096) * 10, torch.tensor([0.0, 1e-9, 447.0, 448.0, 1e9, -1e9])])
    expected = E4M3_VALUES[e4m3_encode(x.numpy() / np.float32(scale))] * np.float32(scale)
    assert np.array_equal(fp8(x, torch.tensor(scale)).numpy(), expected)
