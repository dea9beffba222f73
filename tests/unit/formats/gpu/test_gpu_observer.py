"""Outputs added and measured in one kernel, and statistics computed on the device, compared with the CPU."""

import numpy as np
import pytest
import torch

from halfbyte.calibrate.observe import Observer
from halfbyte.calibrate.token_rows import Rows
from halfbyte.engine.backends.cuda.observe import DeviceObserver
from halfbyte.formats.gpu.combine import combine
from halfbyte.forward.experts import run_experts
from halfbyte.forward.model import Routed
from halfbyte.forward.run import row_chunks

EXPERTS, CHOSEN, WIDTH, INNER = 5, 2, 24, 16


def rows_of(count, length, *, left_padded, names=("news", "code")):
    random = np.random.default_rng(count)
    lengths = np.where(random.random(count) < 0.4, random.integers(1, length, count), length)
    columns = np.arange(length)
    real = columns >= (length - lengths)[:, None] if left_padded else columns < lengths[:, None]
    domains = np.where(real, random.integers(0, len(names), count)[:, None], -1).astype(np.int16)
    tokens = random.integers(0, 50, (count, length), np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    documents = np.where(real, np.arange(count)[:, None], -1).astype(np.int32)
    return Rows(tokens, real, positions, documents, domains, names, left_padded)


def test_outputs_are_added_as_pytorch_adds_them(device):
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(9, 2100, generator=generator).bfloat16()  # wider than a tile
    out = torch.randn(4, 2100, generator=generator).bfloat16()
    tokens, weights = torch.tensor([7, 0, 3, 8]), torch.rand(4, generator=generator)
    expected = total.clone()
    expected[tokens] += (out * weights[:, None]).to(torch.bfloat16)
    found = total.to(device)
    norms, amax = combine(found, tokens.to(device), weights.to(device), out.to(device))
    assert torch.equal(found.cpu(), expected)
    torch.testing.assert_close(norms.cpu(), out.double().norm(dim=1), rtol=1e-14, atol=0)
    assert torch.equal(amax.cpu(), out.float().abs().amax(1))


def test_an_output_that_is_not_finite_shows_in_its_norm(device):
    out = torch.ones(3, 64).bfloat16()
    out[1, 5], out[2, 7] = float("inf"), float("nan")
    norms, _ = combine(torch.zeros(3, 64).bfloat16().to(device), torch.arange(3).to(device), torch.ones(3).to(device),
                       out.to(device))  # fmt: skip
    assert torch.isfinite(norms).tolist() == [True, False, False]


def observed(rows, observer, device, add=None, most=None):
    """Return the observer's statistics of a layer whose last expert is never chosen."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(rows.tokens.size, WIDTH, generator=generator).bfloat16()
    weights, indices = torch.rand(rows.tokens.size, EXPERTS - 1, generator=generator).topk(CHOSEN)
    shapes = [(INNER, WIDTH), (INNER, WIDTH), (WIDTH, INNER)]
    experts = [
        [torch.randn(shape, generator=generator).bfloat16().to(device) for shape in shapes] for _ in range(EXPERTS)
    ]
    logits = torch.randn(rows.tokens.size, EXPERTS, generator=generator)
    routed = Routed(*(tensor.to(device) for tensor in (x, indices, weights, logits)))
    for chunk in row_chunks(len(rows.tokens), 40):
        tokens = slice(chunk.start * rows.tokens.shape[1], chunk.stop * rows.tokens.shape[1])
        observer.routes(chunk, Routed(*(tensor[tokens] for tensor in routed)))
    total = run_experts(
        x.to(device),
        indices.to(device),
        weights.to(device),
        lambda e: tuple(experts[e]),
        observe=observer.expert,
        add=add,
        most=most,
    )
    return total.cpu()


@pytest.mark.parametrize("most", [None, 50])  # tokens of an expert at a time: it has some 220
def test_statistics_are_the_cpus(device, most):
    for left_padded in (True, False):
        rows = rows_of(150, 3, left_padded=left_padded)  # three parts of sums
        ours, theirs = DeviceObserver(1, rows, EXPERTS, device), Observer(1, rows, EXPERTS)
        assert torch.equal(observed(rows, ours, device, ours.add, most), observed(rows, theirs, "cpu"))
        found, expected = ours.finish().experts.tensors(), theirs.stats.experts.tensors()
        assert found.keys() == expected.keys()
        for name in expected:
            if name.startswith(("sum_", "max_")):
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, err_msg=name)
            else:
                np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_inputs_of_linears_are_seen(device):
    rows = rows_of(4, 6, left_padded=False)
    ours, theirs = DeviceObserver(0, rows, 0, device), Observer(0, rows, 0)
    generator = torch.Generator().manual_seed(3)
    for chunk in (slice(0, 3), slice(3, 4)):
        size = chunk.stop - chunk.start
        for name, shape in (("mlp.gate_proj", (size, 6, 8)), ("self_attn.k", (size, 2, 6, 4))):
            tensor = torch.randn(shape, generator=generator).bfloat16()
            ours.hook(chunk)(name, tensor.to(device))
            theirs.hook(chunk)(name, tensor)
    assert ours.finish().input_amax == theirs.stats.input_amax
