"""Every GPU kernel equals the CPU to the byte on hostile stacks, in Triton's interpreter without a GPU."""

import numpy as np
import pytest
import torch
from stacks import (
    assert_equals_codec,
    assert_same_quality,
    bits,
    hostile_bf16,
    hostile_int4,
    int4_experts,
    kimi_int4,
    largest,
    tensors,
)

from halfbyte.errors import TensorError, UsageError
from halfbyte.formats.codec import decode, encode
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.gpu import blocks as gpu_blocks
from halfbyte.formats.gpu import decode as gpu_decode
from halfbyte.formats.gpu import mxfp4, nvfp4
from halfbyte.formats.reference import floats, int4
from halfbyte.formats.reference import nvfp4 as reference

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is NumPy: it warns of infinities

NVFP4 = [("nvfp4", "max"), ("nvfp4_ct", "compressed-tensors")]
MXFP4 = ["mxfp4", "mxfp4_ct"]


@pytest.fixture(scope="module")
def weights():
    return hostile_bf16(1)


@pytest.fixture(scope="module")
def stored():
    return hostile_int4(2, n=10)


@pytest.mark.parametrize(("format", "method"), NVFP4)
def test_bf16_to_nvfp4(device, weights, format, method):
    (w,) = tensors(device, weights)
    made = nvfp4.bf16_to_nvfp4(w, gpu_blocks.bf16_amax(w), method=method)
    assert_equals_codec(made, weights, format, method)


@pytest.mark.parametrize("format", MXFP4)
def test_bf16_to_mxfp4(device, weights, format):
    (w,) = tensors(device, weights)
    assert_equals_codec(mxfp4.bf16_to_mxfp4(w, keep_negative_zero=format == "mxfp4_ct"), weights, format)


@pytest.mark.parametrize(("format", "method"), NVFP4)
def test_int4_to_nvfp4(device, stored, format, method):
    packed, scale = tensors(device, *stored)
    made = nvfp4.int4_to_nvfp4(packed, scale, gpu_blocks.int4_amax(packed, scale), method=method)
    assert_equals_codec(made, int4_experts(*stored), format, method)


@pytest.mark.parametrize("format", MXFP4)
def test_int4_to_mxfp4(device, stored, format):
    packed, scale = tensors(device, *stored)
    assert_equals_codec(
        mxfp4.int4_to_mxfp4(packed, scale, keep_negative_zero=format == "mxfp4_ct"), int4_experts(*stored), format
    )


def test_experts_share_a_tensor_scale_over_several_tiles(device):
    """Weights as released, more of them than a tile has and no whole number of tiles; gate and up share an amax."""
    packed, scale = kimi_int4(3, experts=1, n=25, k=448)
    experts = int4_experts(packed, scale)
    shared = largest(experts) * np.float32(2)
    packed, scale = tensors(device, packed, scale)
    made = nvfp4.int4_to_nvfp4(packed, scale, torch.from_numpy(shared).to(device))
    assert_equals_codec(made, experts, "nvfp4", "max", shared)


@pytest.mark.parametrize("group", [64, 128])
def test_groups_of_several_blocks(device, group):
    arrays = kimi_int4(4, n=2, k=384, group=group)
    experts, (packed, scale) = int4_experts(*arrays), tensors(device, *arrays)
    own = gpu_blocks.int4_amax(packed, scale)
    assert_equals_codec(nvfp4.int4_to_nvfp4(packed, scale, own), experts, "nvfp4", "max")
    assert_equals_codec(mxfp4.int4_to_mxfp4(packed, scale), experts, "mxfp4")
    expected = np.stack([decode(e) for e in experts])
    np.testing.assert_array_equal(bits(gpu_decode.int4_to_bf16(packed, scale)).view(np.uint16), expected)


def test_given_scales(device):
    """The scales of the sweep, and any others: 0 and the largest too."""
    arrays = hostile_int4(4, n=10)
    experts, rng = int4_experts(*arrays), np.random.default_rng(5)
    given = rng.integers(0, 127, (5, 10, 16)).astype(np.uint8)
    swept = encode(experts[0], "nvfp4", method="mse")
    given[0] = swept.tensors["weight_scale"]
    packed, scale = tensors(device, *arrays)
    own, on_device = torch.from_numpy(largest(experts)).to(device), torch.from_numpy(given).to(device)
    fused = nvfp4.int4_to_nvfp4(packed, scale, own, given=on_device)
    plain = nvfp4.bf16_to_nvfp4(gpu_decode.int4_to_bf16(packed, scale), own, given=on_device)
    for i, expert in enumerate(experts):
        with np.errstate(all="ignore"):
            expected = reference.codes(decode(expert), given[i], reference.tensor_scale(own[i].item()))
        for made in (fused, plain):
            np.testing.assert_array_equal(made.packed[i].cpu().numpy(), expected)
    for made in (fused, plain):
        assert_same_quality(made.quality, 0, swept.quality)
    assert torch.equal(fused.quality.saturated, plain.quality.saturated)
    assert torch.equal(fused.quality.max_error, plain.quality.max_error)


def test_quality_can_be_left_out(device):
    packed, scale = tensors(device, *kimi_int4(6, experts=1, n=2, k=64))
    own = gpu_blocks.int4_amax(packed, scale)
    w = gpu_decode.int4_to_bf16(packed, scale)
    for with_it, without in (
        [nvfp4.int4_to_nvfp4(packed, scale, own, quality=wanted) for wanted in (True, False)],
        [nvfp4.bf16_to_nvfp4(w, own, quality=wanted) for wanted in (True, False)],
    ):
        assert with_it.quality is not None
        assert without.quality is None
        assert torch.equal(with_it.packed, without.packed)
        assert torch.equal(with_it.scale, without.scale)


def test_amax(device, weights, stored):
    (w,) = tensors(device, weights)
    np.testing.assert_array_equal(gpu_blocks.bf16_amax(w).cpu().numpy(), largest(weights))
    packed, scale = tensors(device, *stored)
    np.testing.assert_array_equal(gpu_blocks.int4_amax(packed, scale).cpu().numpy(), largest(int4_experts(*stored)))


def test_amax_is_found_under_a_small_scale(device):
    """The groups with the largest scales are examined first; here they have small codes."""
    q = np.zeros((1, 64), np.int8)
    q[0, 3], q[0, 40] = 1, -8
    packed, scale = tensors(device, int4.pack(q)[None], np.uint16([[[0x3F80, 0x3F00]]]))  # 1 and 0.5
    assert gpu_blocks.int4_amax(packed, scale).tolist() == [4.0]


def test_block_scales_halfway_between_two_of_e4m3(device):
    """Under a tensor scale of 1 a block's scale is its amax / 6: every midpoint of E4M3, and what is just beside it."""
    values = floats.E4M3_VALUES[:127].astype(np.float64)
    tops = floats.f32_to_bf16((3 * (values[:-1] + values[1:])).astype(np.float32))
    assert (floats.bf16_to_f32(tops) == 3 * (values[:-1] + values[1:])).all()
    w = np.zeros((1, 126, 64), np.uint16)
    w[0, :, 0], w[0, :, 16], w[0, :, 32] = tops, tops - 1, tops + 1
    w[0, 0, 63] = floats.f32_to_bf16(np.float32([2688]))[0]
    (on_device,) = tensors(device, w)
    made = nvfp4.bf16_to_nvfp4(on_device, gpu_blocks.bf16_amax(on_device))
    assert made.tensor_scale.tolist() == [1.0]
    assert_equals_codec(made, w, "nvfp4", "max")


def test_decode_int4(device, stored):
    packed, scale = tensors(device, *stored)
    expected = np.stack([decode(e) for e in int4_experts(*stored)])
    np.testing.assert_array_equal(bits(gpu_decode.int4_to_bf16(packed, scale)).view(np.uint16), expected)


@pytest.mark.parametrize("format", ["nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"])
def test_decode_fp4(device, weights, format):
    """All codes under all scales that are numbers."""
    rng = np.random.default_rng(7)
    block = 16 if format.startswith("nvfp4") else 32
    codes = rng.integers(0, 256, (3, 16, 128)).astype(np.uint8)
    scale = rng.integers(0, 127 if block == 16 else 255, (3, 16, 256 // block)).astype(np.uint8)
    tensor_scale = np.float32([1e-3, 3.1e-39, 7e30])
    p, s, t = (torch.from_numpy(a).to(device) for a in (codes, scale, tensor_scale))
    names = ["weight" if format in ("nvfp4", "mxfp4") else "weight_packed", "weight_scale"]
    if block == 16:
        made = gpu_decode.nvfp4_to_bf16(p, s, t, reciprocal=format == "nvfp4_ct")
        names.append("weight_scale_2" if format == "nvfp4" else "weight_global_scale")
    else:
        made = gpu_decode.mxfp4_to_bf16(p, s)
    for i in range(3):
        parts = (codes[i], scale[i], tensor_scale[i : i + 1].reshape(() if format == "nvfp4" else (1,)))
        expected = decode(Encoded(format, (16, 256), dict(zip(names, parts, strict=False))))
        np.testing.assert_array_equal(bits(made[i]).view(np.uint16), expected)


@pytest.mark.parametrize("shape", [(130, 256), (3, 37), (128, 600)])
def test_decode_fp8_blocks(device, shape):
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 255, (2, *shape)).astype(np.uint8)
    codes[(codes & 127) == 127] = 5
    scale = np.exp(rng.uniform(-80, 60, (2, -(-shape[0] // 128), -(-shape[1] // 128)))).astype(np.float32)
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(device)
    made = gpu_decode.fp8_block_to_bf16(weight, torch.from_numpy(scale).to(device))
    for i in range(2):
        expected = decode(Encoded("fp8_block", shape, {"weight": codes[i], "weight_scale_inv": scale[i]}))
        np.testing.assert_array_equal(bits(made[i]).view(np.uint16), expected)


def test_what_kernels_would_misread_is_refused(device):
    packed, scale = tensors(device, *kimi_int4(6, experts=1, n=2, k=64))
    own = gpu_blocks.int4_amax(packed, scale)
    with pytest.raises(TensorError, match="does not fit"):
        gpu_blocks.int4_amax(packed, scale[:, :1])
    with pytest.raises(TensorError, match="not contiguous"):
        nvfp4.int4_to_nvfp4(packed[:, :, ::2], scale, own)
    with pytest.raises(TensorError, match="amax"):
        nvfp4.int4_to_nvfp4(packed, scale, own.double())
    with pytest.raises(UsageError, match="no method"):
        nvfp4.int4_to_nvfp4(packed, scale, own, method="mse")
    with pytest.raises(TensorError, match="K = 48 is not a multiple of 32"):
        mxfp4.bf16_to_mxfp4(torch.zeros((1, 2, 48), dtype=torch.bfloat16, device=device))
