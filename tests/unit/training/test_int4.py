"""Training's INT4 equals halfbyte's codec to the last bit.

One exception: INT4 has a single zero, and training keeps the sign from rounding. No product depends on it.
"""

import numpy as np
import pytest
import torch
from training import int4

from halfbyte import decode, encode


def through_codec(weights):
    bits = weights.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    return decode(encode(bits, "int4", method="kimi"))


def stored_bits(weights):
    bits = int4.stored(weights).view(torch.int16).numpy().view(np.uint16)
    return np.where(bits == 0x8000, 0, bits)  # minus zero


def equal(weights):
    return np.array_equal(stored_bits(weights), through_codec(weights))


@pytest.mark.parametrize("size", [1.0, 0.02, 1e-3, 1e-30, 1e-38, 1e30])
def test_random_weights(size):
    torch.manual_seed(1)
    assert equal(torch.randn(256, 256) * size)


def test_any_finite_bf16_number():
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 16, (512, 512), dtype=np.uint16)
    bits[(bits & 0x7F80) == 0x7F80] &= 0xBFFF  # neither infinite nor not a number
    assert equal(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float())


def test_groups_of_zeros_of_both_signs_and_groups_with_one_number():
    weights = torch.zeros(8, 96)
    weights[1] = -0.0
    weights[2, 5] = 3.0
    weights[3, 64] = -(2.0**-133)  # the smallest BF16 number
    weights[4] = torch.finfo(torch.bfloat16).max
    weights[5, 0], weights[5, 1] = torch.finfo(torch.bfloat16).max, 2.0**-126
    assert equal(weights)


def test_ties_between_two_codes():
    steps = torch.arange(-7, 7.01, 0.5)
    groups = torch.cat([torch.tensor([7.0, -7.0]), steps, torch.zeros(1)])[:32]
    assert equal(groups.repeat(4, 1) * torch.tensor([1.0, 0.25, 3.0, 2.0**-120])[:, None])


def test_stacked_experts_are_stored_like_each_alone():
    torch.manual_seed(3)
    weights = torch.randn(3, 8, 64)
    assert torch.equal(int4.stored(weights), torch.stack([int4.stored(one) for one in weights]))


def test_gradients_pass_straight():
    weights = torch.randn(4, 32, requires_grad=True)
    wanted = torch.randn(4, 32)
    (int4.straight_through(weights).float() * wanted).sum().backward()
    assert weights.grad is not None
    assert torch.equal(weights.grad, wanted.to(torch.bfloat16).float())
