"""Tensor names to roles, for every shipped family."""

import time
from typing import get_args

import pytest

from halfbyte.errors import CheckpointError
from halfbyte.families.examples import example
from halfbyte.families.registry import families, family_of
from halfbyte.recipe.decisions import Role

K2 = family_of({"model_type": "kimi_k2"})
K25 = family_of({"model_type": "kimi_k25"})
QWEN = family_of({"model_type": "qwen3_moe"})
LAYER = "language_model.model.layers.7"


@pytest.mark.parametrize(
    ("family", "name", "expected"),
    [
        (K25, f"{LAYER}.mlp.experts.12.up_proj.weight_packed", ("routed_experts", "weight_packed", 7, 12)),
        (K25, f"{LAYER}.mlp.experts.0.down_proj.weight_scale_2", ("routed_experts", "weight_scale_2", 7, 0)),
        (K25, f"{LAYER}.mlp.experts.0.down_proj.input_global_scale", ("routed_experts", "input_global_scale", 7, 0)),
        (K25, f"{LAYER}.mlp.shared_experts.gate_proj.weight", ("shared_experts", "weight", 7, None)),
        (K25, f"{LAYER}.mlp.gate_proj.weight", ("dense_mlp", "weight", 7, None)),
        (K25, f"{LAYER}.self_attn.kv_a_proj_with_mqa.weight_scale_inv", ("attention", "weight_scale_inv", 7, None)),
        (K25, f"{LAYER}.mlp.gate.weight", ("router", "", 7, None)),
        (K25, f"{LAYER}.mlp.gate.e_score_correction_bias", ("router", "", 7, None)),
        (K25, f"{LAYER}.self_attn.k_proj.k_scale", ("other_buffers", "", 7, None)),
        (K25, f"{LAYER}.self_attn.v_scale", ("other_buffers", "", 7, None)),
        (K25, "language_model.lm_head.weight", ("head", "weight", None, None)),
        (K25, "language_model.model.embed_tokens.weight", ("embed", "", None, None)),
        (K25, "language_model.model.norm.weight", ("norm", "", None, None)),
        (K25, "vision_tower.encoder.blocks.3.wqkv.bias", ("vision", "", None, None)),
        (K25, "mm_projector.proj.2.weight", ("projector", "", None, None)),
        (K2, "model.layers.60.self_attn.rotary_emb.inv_freq", ("other_buffers", "", 60, None)),
        (K2, "model.layers.10.mlp.experts.383.gate_proj.weight", ("routed_experts", "weight", 10, 383)),
        (K2, "model.layers.61.eh_proj.weight", ("projector", "", 61, None)),
        (QWEN, "model.layers.0.self_attn.k_proj.weight", ("attention", "weight", 0, None)),
        (QWEN, "model.layers.0.self_attn.q_norm.weight", ("norm", "", 0, None)),
        (QWEN, "model.layers.0.self_attn.k_proj.k_scale", ("other_buffers", "", 0, None)),
    ],
)
def test_every_kind_of_tensor_has_its_place(family, name, expected):
    place = family.place(name)
    assert (place.role, place.suffix, place.layer, place.expert) == expected
    assert f"{place.module}.{place.suffix}".removesuffix(".") == name


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (K25, f"{LAYER}.mlp.experts.12.up_proj.weight_zero_point"),  # an asymmetric format
        (K25, f"{LAYER}.mlp.experts.012.up_proj.weight"),  # not how numbers are written
        (K25, "model.layers.0.mlp.gate_proj.weight"),  # another family's prefix
        (K25, f"{LAYER}.mlp.experts.1.up_proj.weight\n"),
        (K2, "vision_tower.patch_embed.proj.weight"),
        (K2, "model.layers.1.mlp.experts.w13"),
        (QWEN, "model.layers.0.mlp.shared_expert.gate_proj.weight"),
    ],
)
def test_a_name_that_no_template_knows_is_an_error_with_that_name(family, name):
    with pytest.raises(CheckpointError) as caught:
        family.place(name)
    assert name in caught.value.what
    assert f"families/{family.name}/tensors.json" in caught.value.fix


def test_fused_linears_share_a_name():
    expert = "language_model.model.layers.1.mlp.experts.3"
    assert K25.fused_group(f"{expert}.gate_proj") == K25.fused_group(f"{expert}.up_proj")
    assert K25.fused_group(f"{expert}.gate_proj") != K25.fused_group(f"{expert}.down_proj")
    assert K25.fused_group(f"{expert}.gate_proj") != K25.fused_group(f"{expert[:-1]}4.gate_proj")
    attention = "model.layers.1.self_attn"
    assert K2.fused_group(f"{attention}.q_a_proj") == K2.fused_group(f"{attention}.kv_a_proj_with_mqa")
    assert len({QWEN.fused_group(f"{attention}.{c}_proj") for c in "qkv"}) == 1


def test_families_speak_of_roles_that_recipes_know():
    for family in families():
        assert {role for role, _ in (*family.linears, *family.others)} <= set(get_args(Role))


def test_no_name_has_two_roles():
    names = list(example("kimi-k2.6").tensors)[::97]
    for name in names:
        module = name.rpartition(".")[0]
        seats = [role for role, pattern in K25.linears if pattern.fullmatch(module)]
        seats += [role for role, pattern in K25.others if pattern.fullmatch(name)]
        assert len(seats) == 1, name


def test_an_unknown_model_type_is_an_error_with_those_that_are_known():
    with pytest.raises(CheckpointError, match="unknown model_type 'llama'") as caught:
        family_of({"model_type": "llama"})
    assert "kimi_k25" in caught.value.fix


def test_all_names_of_the_release_are_placed_in_a_second():
    names = list(example("kimi-k2.6").tensors)
    start = time.process_time()
    for name in names:
        K25.place(name)
    assert time.process_time() - start < 3  # the goal is 1.5 s; a busy machine may take longer
