"""Exhaustive checks of finite sets: every FP32 pattern, every E4M3 code, every pair of INT4 code and BF16 scale."""

import numpy as np
import pytest
import torch
from numba import njit

from halfbyte.formats.codec import decode, encode
from halfbyte.formats.cpu.kernels.scalars import e2m1_code_of, e2m1_value, e4m3_code
from halfbyte.formats.encoded import Encoded, bf16_bits
from halfbyte.formats.reference import floats, int4, mxfp4, nvfp4

FINITE_BF16 = np.array([p for p in range(65536) if p & 0x7FFF < 0x7F80], np.uint16)


@njit(nogil=True)
def wrong_e2m1(first, last):
    """Count magnitudes whose kernel code differs from the one given by the seven thresholds."""
    wrong = 0
    for bits in range(first, last):
        x = np.uint32(bits).view(np.float32)
        code = np.uint8(x > np.float32(0.25)) + np.uint8(x >= np.float32(0.75)) + np.uint8(x > np.float32(1.25))
        code += np.uint8(x >= np.float32(1.75)) + np.uint8(x > np.float32(2.5)) + np.uint8(x >= np.float32(3.5))
        code += np.uint8(x > np.float32(5))
        wrong += np.int64(e2m1_code_of(e2m1_value(x)) != code)
    return wrong


def test_e2m1_on_every_finite_fp32():
    """The kernel sees magnitudes (it splits the sign off first), so 2^31 - 2^23 patterns are all there are."""
    assert wrong_e2m1(0, 0x7F800000) == 0


def test_reference_e2m1_around_every_threshold():
    for threshold in floats.E2M1_THRESHOLDS:
        bits = int(threshold.view(np.uint32))
        x = np.arange(bits - 70_000, bits + 70_000, dtype=np.uint32).view(np.float32)
        even_above = threshold in (0.75, 1.75, 3.5)
        below = int(np.searchsorted(floats.E2M1_THRESHOLDS, threshold))
        expected = below + (x >= threshold if even_above else x > threshold)
        np.testing.assert_array_equal(floats.e2m1_magnitude(x), expected)
    np.testing.assert_array_equal(floats.e2m1_magnitude(floats.E2M1_VALUES), np.arange(8))


@njit(nogil=True)
def kernel_e4m3(first, codes):
    for i in range(codes.size):
        codes[i] = e4m3_code(np.uint32(first + i).view(np.float32))


def test_e4m3_rounding_of_every_fp32_up_to_448():
    """Against PyTorch's own cast."""
    step, last = 1 << 25, 0x43E00000  # 448
    codes = np.empty(step, np.uint8)
    for first in range(0, last + 1, step):
        count = min(step, last + 1 - first)
        kernel_e4m3(first, codes[:count])
        values = torch.arange(first, first + count, dtype=torch.int32).view(torch.float32)
        expected = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        assert (codes[:count] == expected).all(), hex(first)


def test_reference_e4m3_at_every_midpoint_and_beside_it():
    values = floats.E4M3_VALUES[:127]
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    x = np.concatenate([values, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(999))])
    x = np.concatenate([x, -x])
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(floats.e4m3_encode(x), expected)


def test_every_e4m3_code_decodes_as_pytorch_does():
    expected = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(floats.E4M3_VALUES, expected)
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)[None, :]
    stored = {"weight": codes, "weight_scale_inv": np.ones((1, 2), np.float32)}
    decoded = decode(Encoded("fp8_block", codes.shape, stored))
    np.testing.assert_array_equal(decoded, bf16_bits(torch.from_numpy(codes).view(torch.float8_e4m3fn).bfloat16()))


def every_int4_pair():
    """[65280 scales, 32 columns]: every code twice under every finite BF16 scale."""
    q = np.tile(np.arange(-8, 8, dtype=np.int8), 2)
    packed = int4.pack(np.tile(q, (FINITE_BF16.size, 1)))
    return q, packed, FINITE_BF16[:, None].copy()


def test_int4_decode_of_every_code_and_scale():
    """Against PyTorch's BF16 multiplication."""
    q, packed, scale = every_int4_pair()
    scales = torch.from_numpy(scale.view(np.int16)).view(torch.bfloat16)
    expected = (torch.from_numpy(q).to(torch.bfloat16)[None, :] * scales).contiguous()
    np.testing.assert_array_equal(int4.decode(packed, scale), expected.view(torch.uint16).numpy())
    stored = {"weight_packed": packed, "weight_scale": scale, "weight_shape": np.int32([scale.size, 32])}
    made = decode(Encoded("int4", (scale.size, 32), stored))
    np.testing.assert_array_equal(made, expected.view(torch.uint16).numpy())


def every_int4_block():
    """Every scale that stays finite, with one block of 32 for each largest |q| of 0..8, holding every code up to it."""
    finite = FINITE_BF16[(FINITE_BF16 & 0x7FFF) < 0x7C00]  # 8 * scale is finite below 2^125
    blocks = [np.resize(np.arange(-largest, min(largest, 7) + 1), 32) for largest in range(9)]
    q = np.tile(np.concatenate(blocks).astype(np.int8), (finite.size, 1))
    scale = np.repeat(finite[:, None], 9, axis=1)
    stored = {"weight_packed": int4.pack(q), "weight_scale": scale, "weight_shape": np.int32(q.shape)}
    return Encoded("int4", q.shape, stored)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp4_ct"])
def test_int4_to_mxfp4_is_the_reference_on_its_whole_domain(format):
    source = every_int4_block()
    made = encode(source, format)
    decoded = int4.decode(source.tensors["weight_packed"], source.tensors["weight_scale"])
    codes, scale = mxfp4.encode(decoded, keep_negative_zero=format == "mxfp4_ct")
    np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
    np.testing.assert_array_equal(next(iter(made.tensors.values())), codes)


@pytest.mark.parametrize("method", ["max", "compressed-tensors"])
def test_int4_to_nvfp4_is_the_reference_for_every_scale_under_the_largest(method):
    source = every_int4_block()
    made = encode(source, "nvfp4_ct", method=method)
    decoded = int4.decode(source.tensors["weight_packed"], source.tensors["weight_scale"])
    largest = np.abs(floats.bf16_to_f32(decoded)).max()
    if method == "max":
        codes, scale = nvfp4.encode_max(decoded, nvfp4.tensor_scale(largest))
    else:
        codes, scale = nvfp4.encode_compressed_tensors(decoded, nvfp4.global_scale(largest))
    np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
    np.testing.assert_array_equal(made.tensors["weight_packed"], codes)


@pytest.mark.parametrize("format", ["nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"])
def test_sign_rule_and_codes_of_every_bf16_weight(format):
    """Each finite BF16 beside amaxes that send it to every code; the sign rule is the format's own."""
    tops = np.uint16([0x3F80, 0x4000, 0x40C0, 0x40E0, 0x4780, 0x5F00])
    rows = np.repeat(FINITE_BF16[:, None], 32, axis=1)
    for top in tops:
        w = rows[(rows[:, 0] & 0x7FFF) <= top].copy()
        w[:, 0] = top
        w[:, 16] = top
        made = encode(w, format)
        value = floats.bf16_to_f32(w)
        if format == "nvfp4":
            codes, scale = nvfp4.encode_max(w, nvfp4.tensor_scale(np.abs(value).max()))
        elif format == "nvfp4_ct":
            codes, scale = nvfp4.encode_compressed_tensors(w, nvfp4.global_scale(np.abs(value).max()))
        else:
            codes, scale = mxfp4.encode(w, keep_negative_zero=format == "mxfp4_ct")
        np.testing.assert_array_equal(made.tensors["weight_scale"], scale)
        np.testing.assert_array_equal(next(iter(made.tensors.values())), codes)
        unpacked = floats.unpack_nibbles(codes)
        negative_zero = unpacked[(unpacked & 7) == 0] == 8
        assert negative_zero.any() == (format != "mxfp4")  # Quark alone never writes -0
        assert not unpacked[w == 0x8000].any()  # and -0.0 itself is +0 in all of them


def test_kimi_grid_is_a_fixed_point_for_every_amax():
    """Decoding and encoding again gives the same codes and scales, for every BF16 amax that is not tiny."""
    tops = FINITE_BF16[(FINITE_BF16 > 0x0400) & (FINITE_BF16 < 0x7F00)]
    w = np.zeros((tops.size, 32), np.uint16)
    w[:, 5], w[:, 9] = tops, (tops - 0x80) | 0x8000
    once = encode(w, "int4")
    again = encode(decode(once), "int4")
    for suffix in once.tensors:
        np.testing.assert_array_equal(once.tensors[suffix], again.tensors[suffix])
