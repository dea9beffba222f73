"""Stacks of linears for the GPU kernels, the CPU results, and their comparison."""

import numpy as np
import torch

from halfbyte.formats.codec import amax, encode
from halfbyte.formats.encoded import Encoded, array_to_torch
from halfbyte.formats.reference import floats, int4

_HUGE, _TINY = 0x7B80, 0x0001  # BF16 patterns: 8 times the first is finite


def bf16(values):
    return floats.f32_to_bf16(np.asarray(values, np.float32))


def hostile_bf16(seed, n=24, k=128):
    """[5, n, k]: an ordinary expert, zeros, subnormals, weights 60 binades apart, and the largest numbers."""
    rng = np.random.default_rng(seed)
    plain = bf16(rng.standard_normal((n, k)) * 0.02)
    plain[0, :48], plain[1, :64] = 0, 0x8000
    plain[2, :48] = rng.integers(1, 128, 48)
    plain[3, 5] = bf16([3e4])[0]
    plain[4] = bf16(2.0 ** rng.integers(-20, 4, k))
    plain[6] = bf16(rng.standard_normal(k) * 10.0 ** rng.integers(-12, 3, k))
    wide = bf16(rng.standard_normal((n, k)) * 2.0 ** rng.integers(-120, 100, (n, k)))
    small = rng.integers(0, 300, (n, k)).astype(np.uint16) | (rng.integers(0, 2, (n, k)) << 15).astype(np.uint16)
    large = rng.integers(0x7000, 0x7F80, (n, k)).astype(np.uint16) | (rng.integers(0, 2, (n, k)) << 15).astype(
        np.uint16
    )
    return np.stack([plain, np.zeros_like(plain), wide, small, large])


def hostile_int4(seed, group=32, n=24, k=256):
    """Codes of all 16 values; scales ordinary, zero, subnormal, negative, wide apart, and huge: five experts."""
    rng = np.random.default_rng(seed)
    q = rng.integers(-8, 8, (5, n, k)).astype(np.int8)
    q[:, 1, :64], q[:, 2, ::3], q[:, 3] = 0, 0, np.clip(q[:, 3], -2, 2)
    q[:, 4], q[:, 5] = np.abs(q[:, 4] // 2), -np.abs(q[:, 5])
    shape = (n, k // group)
    plain = bf16(np.abs(rng.standard_normal(shape)) * 0.003 + 1e-4)
    plain[6], plain[7], plain[8] = 0, rng.integers(1, 0x80, shape[1]), plain[8] | 0x8000
    plain[9] = bf16(2.0 ** rng.integers(-30, -6, shape[1]))
    wide = rng.integers(0, _HUGE, shape).astype(np.uint16) | (rng.integers(0, 2, shape) << 15).astype(np.uint16)
    small = rng.integers(0, 300, shape).astype(np.uint16)
    spread = bf16(rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-24, 0, shape))
    scale = np.stack([plain, np.zeros_like(plain), wide, small, spread])
    return np.stack([int4.pack(one) for one in q]), scale


def kimi_int4(seed, experts=2, n=40, k=512, group=32):
    """Weights as in a release: Kimi's grid over a Gaussian, some experts larger than others."""
    rng = np.random.default_rng(seed)
    made = [encode(bf16(rng.standard_normal((n, k)) * 0.01 * (1 + i)), "int4", group=group) for i in range(experts)]
    return np.stack([m.tensors["weight_packed"] for m in made]), np.stack([m.tensors["weight_scale"] for m in made])


def int4_experts(packed, scale):
    """Each expert in the form of the codec."""
    shape = (packed.shape[1], packed.shape[2] * 8)
    return [
        Encoded("int4", shape, {"weight_packed": p, "weight_scale": s, "weight_shape": np.int32(shape)})
        for p, s in zip(packed, scale, strict=True)
    ]


def tensors(device, *arrays):
    """Stored arrays on the device: uint16 is BF16."""
    return [array_to_torch(a, "BF16" if a.dtype == np.uint16 else "").to(device) for a in arrays]


def bits(tensor):
    """Bit patterns of a tensor as NumPy."""
    plain = {torch.bfloat16: torch.int16, torch.float32: torch.int32}.get(tensor.dtype)
    return (tensor if plain is None else tensor.view(plain)).cpu().numpy()


def assert_equals_codec(made, experts, format, method=None, group_amax=None):
    """Check that codes, scales, tensor scale and quality of each expert equal the CPU's."""
    for i, expert in enumerate(experts):
        extra = {} if group_amax is None else {"amax": float(group_amax[i])}
        expected = encode(expert, format, method=method, **extra)
        first, second, *rest = expected.tensors.values()
        np.testing.assert_array_equal(made.scale[i].cpu().numpy(), second, err_msg=f"scales of expert {i}")
        np.testing.assert_array_equal(made.packed[i].cpu().numpy(), first, err_msg=f"codes of expert {i}")
        if format == "nvfp4" or method == "compressed-tensors":
            assert made.tensor_scale[i].item() == rest[0].reshape(-1)[0]
        if made.quality is not None:
            assert_same_quality(made.quality, i, expected.quality)


def assert_same_quality(sums, i, expected):
    assert sums.weights == expected.weights
    np.testing.assert_allclose(sums.signal[i].item(), expected.signal, rtol=1e-6)
    np.testing.assert_allclose(sums.error[i].item(), expected.error, rtol=1e-6)
    assert sums.max_error[i].item() == expected.max_error
    assert sums.saturated[i].item() == expected.saturated


def largest(experts):
    return np.float32([amax(e) for e in experts])
