"""A decoder layer: the tensors it reads, exposes, and allows to change."""

import pytest
import torch
from pico import write_pico
from resident import left_padded, read_small, resident, run_resident, streamed

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.forward.positions import attention_inputs

BF16 = torch.bfloat16
ATTENTION = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "k", "v", "latent", "k_rope"}
MLP = {"gate_proj", "up_proj", "down_proj"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return read_small(write_pico(tmp_path_factory.mktemp("layer") / "k2.6", "int4-k2.6", experts=8))


@pytest.fixture
def rows():
    return left_padded(4, 32, 128)


def test_it_asks_for_its_own_tensors_and_for_no_routed_expert(small):
    asked = []

    def tensors(name):
        asked.append(name)
        return small.tensors[name]

    small.model().decoder_layer(1, tensors)
    at = "language_model.model.layers.1."
    outside = {name for name in small.tensors if name.startswith(at) and ".mlp.experts." not in name}
    assert set(asked) == outside
    assert len(asked) == len(outside)


def test_the_bias_of_the_router_stays_fp32(small):
    layer = small.model().decoder_layer(1, small.tensors, BF16)
    kinds = {name: tensor.dtype for name, tensor in layer._layer.state_dict().items()}
    assert kinds.pop("mlp.gate.e_score_correction_bias") == torch.float32
    assert set(kinds.values()) == {BF16}


def test_a_missing_tensor_is_named(small):
    name = "language_model.model.layers.1.self_attn.o_proj.weight"
    with pytest.raises(CheckpointError, match=name):
        small.model().decoder_layer(1, {key: value for key, value in small.tensors.items() if key != name})


def test_a_tensor_of_another_shape_is_named(small):
    name = "language_model.model.layers.0.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match=f"{name}.*shape"):
        small.model().decoder_layer(0, small.tensors | {name: small.tensors[name][:-1]})


@pytest.mark.parametrize("index", [-1, 3])
def test_layers_that_do_not_run_are_refused(small, index):
    with pytest.raises(UsageError, match="a layer from 0 to 2"):
        small.model().decoder_layer(index, small.tensors)


def test_a_look_sees_every_input(small, rows):
    """The inputs are those of the resident model's linears; keys and values are what its attention is given."""
    seen = {}

    def hook(name, tensor):
        seen.setdefault(name, []).append(tensor.clone())

    streamed(small, rows, BF16, hook_of=lambda chunk: hook)
    parts = {f"self_attn.{leaf}" for leaf in ATTENTION}
    assert set(seen) == parts | {f"mlp.{leaf}" for leaf in MLP} | {f"mlp.shared_experts.{leaf}" for leaf in MLP}

    model, expected = resident(small, BF16), {}
    for layer in model.model.layers:
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(
                    lambda _, given, name=name: expected.setdefault(name, []).append(given[0].clone())
                )
    inputs = {"input_ids": torch.from_numpy(rows.tokens).long(), "attention_mask": torch.from_numpy(rows.real).long()}
    run_resident(model, **inputs)
    for name, tensors in expected.items():
        assert all(torch.equal(*pair) for pair in zip(seen[name], tensors, strict=True)), name


def test_keys_and_values_are_expanded_from_the_latent(small, rows):
    seen, model = {}, small.model()
    layer = model.decoder_layer(0, small.tensors)
    h = torch.randn(4, 32, 64, generator=torch.Generator().manual_seed(0)).to(BF16)
    layer.attention_part(
        h, attention_inputs(model, rows, slice(0, 4)), lambda name, tensor: seen.update({name: tensor})
    )
    k, v, latent, k_rope = (seen[f"self_attn.{name}"] for name in ("k", "v", "latent", "k_rope"))
    config = model.config
    heads, nope = config.num_attention_heads, config.qk_nope_head_dim
    assert latent.shape == (4, 1, 32, config.kv_lora_rank)
    assert k.shape == (4, heads, 32, nope + config.qk_rope_head_dim)
    assert v.shape == (4, heads, 32, config.v_head_dim)
    both = torch.nn.functional.linear(latent, small.tensors[f"{model.layer(0)}self_attn.kv_b_proj.weight"])
    both = both.view(4, 32, heads, -1).transpose(1, 2)
    assert torch.equal(k[..., :nope], both[..., :nope])
    assert torch.equal(v, both[..., nope:])
    assert torch.equal(k[..., nope:], k_rope.expand(-1, heads, -1, -1))


@pytest.mark.parametrize("name", ["self_attn.latent", "self_attn.k_rope", "self_attn.v", "mlp.shared_experts.up_proj"])
def test_what_a_look_returns_takes_the_place_of_what_it_saw(small, rows, name):
    same = streamed(small, rows, BF16, hook_of=lambda chunk: lambda _, tensor: tensor.clone())
    plain = streamed(small, rows, BF16)
    assert torch.equal(same[1], plain[1])

    def halved(seen, tensor):
        return tensor / 2 if seen == name else None

    assert not torch.equal(streamed(small, rows, BF16, hook_of=lambda chunk: halved)[1], plain[1])


def test_each_thread_has_its_own_look(small):
    rows, seen = left_padded(12, 32, 128), {}

    def hook_of(chunk):
        def hook(name, tensor):
            if name == "self_attn.q_a_proj":
                seen.setdefault(chunk.start, []).append(tensor.clone())

        return hook

    streamed(small, rows, BF16, chunk=2, threads=3, hook_of=hook_of)
    threaded = dict(seen)
    seen.clear()
    streamed(small, rows, BF16, chunk=2, threads=1, hook_of=hook_of)
    assert sorted(seen) == sorted(threaded) == list(range(0, 12, 2))
    for start, tensors in seen.items():
        assert all(torch.equal(*pair) for pair in zip(tensors, threaded[start], strict=True))
