"""Routed experts: transformers' eager sums, each expert decoded once, observed in order, for any number of threads."""

import threading

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

from halfbyte.forward.experts import run_experts, turns
from halfbyte.forward.ordered_threads import in_order

EXPERTS, CHOSEN, TOKENS, WIDTH, INNER = 12, 3, 200, 64, 32
UNUSED = 5


@pytest.fixture(params=[torch.bfloat16, torch.float32], ids=str)
def problem(request):
    """Tokens, their experts (never the unused one), and transformers' module with the weights."""
    torch.manual_seed(0)
    config = DeepseekV3Config(hidden_size=WIDTH, moe_intermediate_size=INNER, n_routed_experts=EXPERTS)
    config._experts_implementation = "eager"
    module = DeepseekV3Experts(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    module = module.to(request.param).requires_grad_(False)
    scores = torch.rand(TOKENS, EXPERTS)
    scores[:, UNUSED] = -1
    indices = scores.topk(CHOSEN, sorted=False).indices
    return torch.randn(TOKENS, WIDTH).to(request.param), indices, torch.rand(TOKENS, CHOSEN) + 0.1, module


def weights_of(module):
    def expert(number):
        gate, up = module.gate_up_proj[number].chunk(2)
        return gate, up, module.down_proj[number]

    return expert


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_sum_is_that_of_transformers(problem, threads):
    x, indices, weights, module = problem
    found = run_experts(x, indices, weights, weights_of(module), threads=threads)
    assert torch.equal(found, module(x, indices, weights))


@pytest.mark.parametrize("threads", [1, 2])
def test_every_expert_with_tokens_is_decoded_once_and_seen_in_order(problem, threads):
    x, indices, weights, module = problem
    decoded, seen, lock = [], [], threading.Lock()

    def expert(number):
        with lock:
            decoded.append(number)
        return weights_of(module)(number)

    def observe(number, tokens, gates, given, act, out):
        assert (act.shape, out.shape) == ((len(tokens), INNER), (len(tokens), WIDTH))
        at = (indices[tokens] == number).nonzero()[:, 1]
        assert torch.equal(gates, weights[tokens, at])
        assert torch.equal(out, torch.nn.functional.linear(act, module.down_proj[number]))
        seen.append((number, len(tokens)))

    run_experts(x, indices, weights, expert, threads=threads, observe=observe)
    counts = torch.bincount(indices.flatten(), minlength=EXPERTS).tolist()
    assert counts[UNUSED] == 0
    assert sorted(decoded) == [e for e in range(EXPERTS) if e != UNUSED]
    assert seen == [(e, count) for e, count in enumerate(counts) if count]


@pytest.mark.parametrize("threads", [1, 2])
def test_no_more_experts_are_decoded_at_once_than_there_are_threads(problem, threads):
    x, indices, weights, module = problem
    lock, now, most = threading.Lock(), [0], [0]

    class Held(torch.Tensor):
        """The last reference to an expert's weights, to detect when they are freed."""

        def __del__(self):
            with lock:
                now[0] -= 1

    def expert(number):
        gate, up, down = weights_of(module)(number)
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        return gate, up, down.as_subclass(Held)

    def plain(number, part, tensor):
        return tensor.as_subclass(torch.Tensor)

    run_experts(x, indices, weights, expert, threads=threads, change=plain)
    assert 1 <= most[0] <= threads


def test_what_an_expert_is_given_can_be_changed(problem):
    x, indices, weights, module = problem
    places = set()

    def nothing(expert, part, tensor):
        places.add((expert, part))
        return torch.zeros_like(tensor) if part == "down" else tensor

    assert not run_experts(x, indices, weights, weights_of(module), change=nothing).any()
    assert places == {(e, part) for e in range(EXPERTS) if e != UNUSED for part in ("gate_up", "down")}


def test_results_come_in_order_and_pytorch_keeps_to_one_core():
    before = torch.get_num_threads()
    release = threading.Event()

    def work(item):
        if item == 0:
            release.wait(5)  # the first is the last to finish
        elif item == 1:
            release.set()
        return item, torch.get_num_threads()

    assert list(in_order(work, range(10), threads=2)) == [(item, 1) for item in range(10)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_thread_stops_the_rest(threads):
    started = []

    def work(item):
        started.append(item)
        if item == 1:
            raise ValueError("no")
        return item

    with pytest.raises(ValueError, match="no"):
        list(in_order(work, range(1000), threads))
    assert len(started) < 10


@pytest.mark.parametrize("threads", [1, 2])
def test_an_expert_with_many_tokens_has_several_turns(problem, threads):
    x, indices, weights, module = problem
    seen = []

    def observe(number, tokens, gates, *_):
        assert 0 < len(tokens) <= 16
        seen.append((number, tokens, gates))

    found = run_experts(x, indices, weights, weights_of(module), threads=threads, observe=observe, most=16)
    torch.testing.assert_close(found, module(x, indices, weights))
    assert len(seen) > EXPERTS
    for turn in turns(indices, weights):
        mine = [(tokens, gates) for number, tokens, gates in seen if number == turn.expert]
        assert torch.equal(torch.cat([tokens for tokens, _ in mine]), turn.tokens)
        assert torch.equal(torch.cat([gates for _, gates in mine]), turn.weights)
