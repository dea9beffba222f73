"""GPTQ on the GPU: the factors and codes of the CPU, except next to rounding boundaries."""

import numpy as np
import pytest
import torch

from halfbyte.formats.codec import encode
from halfbyte.formats.encoded import Encoded
from halfbyte.formats.gpu import gptq
from halfbyte.formats.reference.gptq import Factors, tensor_scale
from halfbyte.formats.reference.gptq import factor as reference_factor


def hessian(k, tokens, seed):
    """Return the Hessian of inputs that are correlated and differ in size."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((tokens, k)) @ random.standard_normal((k, k)) * random.lognormal(0, 1, k)
    return inputs.T @ inputs


def weights_of(experts, n, k, device, seed=0):
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(experts, n, k, generator=random) * 0.02
    weights[0, :, 3] *= 30  # an outlier column
    return weights.to(torch.bfloat16).to(device)


def on_the_cpu(weight, amax, factors):
    source = Encoded("bf16", tuple(weight.shape), {"weight": weight.cpu().view(torch.uint16).numpy()})
    return encode(source, "nvfp4", method="gptq", amax=amax, factors=factors)


def factor(hessians):
    return gptq.factor(hessians, gptq.column_orders(hessians))


def codes(packed):
    return np.stack((packed & 15, packed >> 4), axis=-1)


@pytest.mark.parametrize("k", [16, 64, 272])
def test_factors_are_those_of_the_reference(k, device):
    hessians = np.stack([hessian(k, 3 * k, 0), hessian(k, k // 4, 1), np.zeros((k, k))])
    order, upper = factor(torch.from_numpy(hessians).to(device))
    for at, expected in enumerate(map(reference_factor, hessians)):
        assert (order[at].cpu().numpy() == expected.order).all()
        np.testing.assert_allclose(
            upper[at].cpu().numpy(), expected.upper, rtol=1e-9, atol=1e-12 * expected.upper.max()
        )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n", "k"), [(5, 32), (43, 112)])
def test_codes_are_those_of_the_cpu(shared, n, k, device, monkeypatch):
    monkeypatch.setattr(gptq, "PANEL", 32)
    monkeypatch.setattr(gptq, "SECTION", 64)
    weights = weights_of(3, n, k, device)
    amax = weights.abs().amax(dim=(1, 2)).float()
    amax[1] = amax[0]
    hessians = np.stack([hessian(k, 2 * k, seed) for seed in range(1 if shared else 3)])
    factors = factor(torch.from_numpy(hessians).to(device))
    blocks = gptq.compensate(weights, amax, factors)
    for at, weight in enumerate(weights):
        of = 0 if shared else at
        same = Factors(factors.order[of].cpu().numpy(), np.ascontiguousarray(factors.upper[of].cpu().numpy()))
        expected = on_the_cpu(weight, float(amax[at]), same)
        assert float(blocks.tensor_scale[at]) == tensor_scale(amax[at].cpu().numpy())
        assert (codes(blocks.packed[at].cpu().numpy()) == codes(expected.tensors["weight"])).mean() > 0.999
        assert (blocks.scale[at].cpu().numpy() == expected.tensors["weight_scale"].view(np.uint8)).mean() > 0.999
        quality = expected.quality
        assert float(blocks.quality.signal[at]) == pytest.approx(quality.signal)
        assert float(blocks.quality.error[at]) == pytest.approx(quality.error, rel=0.01)
        assert float(blocks.quality.max_error[at]) == pytest.approx(quality.max_error, rel=0.1)
        assert abs(int(blocks.quality.saturated[at]) - quality.saturated) <= 2


def test_an_expert_without_tokens_is_rounded_to_nearest(device):
    weights = weights_of(1, 4, 32, device)
    amax = weights.abs().amax(dim=(1, 2)).float()
    factors = factor(torch.zeros((1, 32, 32), dtype=torch.float64, device=device))
    blocks = gptq.compensate(weights, amax, factors)
    expected = on_the_cpu(weights[0], float(amax[0]), reference_factor(np.zeros((32, 32))))
    assert (blocks.packed[0].cpu().numpy() == expected.tensors["weight"]).all()
    assert (blocks.scale[0].cpu().numpy() == expected.tensors["weight_scale"].view(np.uint8)).all()


def test_zeros_stay_zeros(device):
    weights = torch.zeros((2, 4, 32), dtype=torch.bfloat16, device=device)
    factors = factor(torch.from_numpy(hessian(32, 64, 0)[None]).to(device))
    blocks = gptq.compensate(weights, torch.zeros(2, device=device), factors)
    assert not blocks.packed.any()
    assert torch.isfinite(blocks.quality.error).all()
