"""The Kimi-K3 family in docs/add-a-family.md: it loads, tensors have roles, and unsupported parts are rejected."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError
from halfbyte.families import registry
from halfbyte.families.family import Family, read_family
from halfbyte.families.model import describe

PAGE = Path(__file__).parents[3] / "docs" / "add-a-family.md"
WIDTH, LATENT, INNER, EXPERTS, VOCABULARY = 64, 32, 96, 4, 128
TOP = "language_model.model."
RESIDUALS = (
    "input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "self_attention_res_proj", "mlp_res_norm",
    "mlp_res_proj",
)  # fmt: skip
KDA = {f"{name}_proj.weight": "BF16" for name in ("q", "k", "v", "f_a", "f_b", "b")} | {
    "q_conv1d.weight": "F32", "k_conv1d.weight": "F32", "v_conv1d.weight": "F32", "A_log": "F32", "dt_bias": "F32",
    "o_norm.weight": "F32"}  # fmt: skip
MLA = dict.fromkeys(
    ["q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight",
     "kv_a_layernorm.weight", "kv_b_proj.weight"], "BF16")  # fmt: skip


def sketch(**keys: object) -> Family:
    text = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(text) == 1
    data = json.loads(text[0])
    return read_family("kimi_k3", json.dumps({**data, "keys": {**data["keys"], **keys}}))


@pytest.fixture
def small_k3(pico, monkeypatch):
    """Return a function that builds checkpoints with K3's names and small matrices; `mla` are the layers with latent
    attention.
    """

    def make(*, layers: int = 4, mla: tuple[int, ...] = (), **keys: object) -> Checkpoint:
        monkeypatch.setattr(registry, "families", lambda: (sketch(**keys),))
        tensors = {name: TensorInfo(name, dtype, shape, "a.safetensors", 0, 0)
                   for name, dtype, shape in k3_tensors(layers, mla)}  # fmt: skip
        text = {"num_hidden_layers": layers, "first_k_dense_replace": 1, "num_experts": EXPERTS, "hidden_size": WIDTH,
                "num_shared_experts": 2, "num_experts_per_token": 2, "moe_intermediate_size": INNER,
                "vocab_size": VOCABULARY, "tie_word_embeddings": False}  # fmt: skip
        config = {"model_type": "kimi_k3", "text_config": text}
        return replace(open_checkpoint(pico("int4-k2.6")), config=config, tensors=tensors)

    return make


def k3_tensors(layers: int, mla: tuple[int, ...]):
    yield f"{TOP}embed_tokens.weight", "BF16", (VOCABULARY, WIDTH)
    yield "language_model.lm_head.weight", "BF16", (VOCABULARY, WIDTH)
    for name in ("norm", "output_attn_res_norm", "output_attn_res_proj"):
        yield f"{TOP}{name}.weight", "BF16", (WIDTH,)
    yield "vision_tower.patch_embed.proj.weight", "BF16", (8, 3, 2, 2)
    yield "mm_projector.proj.0.weight", "BF16", (8, 8)
    for layer in range(layers):
        at = f"{TOP}layers.{layer}."
        for name in RESIDUALS:
            yield f"{at}{name}.weight", "BF16", (WIDTH,)
        attention = {**(MLA if layer in mla else KDA), "g_proj.weight": "BF16", "o_proj.weight": "BF16"}
        for name, dtype in attention.items():
            yield f"{at}self_attn.{name}", dtype, (WIDTH, WIDTH) if "_proj" in name else (WIDTH,)
        if layer:
            yield from moe(f"{at}block_sparse_moe.")
        else:
            yield from mlp(f"{at}mlp.")


def moe(at: str):
    yield f"{at}gate.weight", "BF16", (EXPERTS, WIDTH)
    yield f"{at}gate.e_score_correction_bias", "F32", (EXPERTS,)
    yield f"{at}routed_expert_down_proj.weight", "BF16", (LATENT, WIDTH)
    yield f"{at}routed_expert_up_proj.weight", "BF16", (WIDTH, LATENT)
    yield f"{at}routed_expert_norm.weight", "BF16", (LATENT,)
    yield from mlp(f"{at}shared_experts.")
    for expert in range(EXPERTS):
        for name, (n, k) in {"w1": (INNER, LATENT), "w3": (INNER, LATENT), "w2": (LATENT, INNER)}.items():
            yield f"{at}experts.{expert}.{name}.weight_packed", "U8", (n, k // 2)
            yield f"{at}experts.{expert}.{name}.weight_scale", "U8", (n, k // 32)


def mlp(at: str):
    for name in ("gate_proj", "up_proj", "down_proj"):
        yield f"{at}{name}.weight", "BF16", (WIDTH, WIDTH)


def test_every_tensor_of_a_small_k3_has_a_role(small_k3):
    checkpoint = small_k3(mla=(3,))
    family = sketch()
    roles = {name: family.place(name).role for name in checkpoint.tensors}
    assert roles[f"{TOP}layers.1.block_sparse_moe.experts.0.w2.weight_packed"] == "routed_experts"
    assert roles[f"{TOP}layers.1.block_sparse_moe.routed_expert_up_proj.weight"] == "projector"
    assert roles[f"{TOP}layers.1.self_attn.q_conv1d.weight"] == "other_buffers"
    assert roles[f"{TOP}layers.3.self_attn.g_proj.weight"] == "attention"


def test_layers_of_one_kind_are_described_as_they_are_stored(small_k3):
    model = describe(small_k3())
    assert (model.layers, model.moe_layers, model.experts) == (4, (1, 2, 3), EXPERTS)
    assert (model.active_experts, model.shared_experts) == (2, 2)
    assert {linear.format for linear in model.linears.values() if linear.role == "routed_experts"} == {"mxfp4_ct"}
    gate = f"{TOP}layers.1.block_sparse_moe.experts.0."
    assert model.family.fused_group(f"{gate}w1") == model.family.fused_group(f"{gate}w3")


def test_two_kinds_of_attention_are_refused_today(small_k3):
    with pytest.raises(CheckpointError, match=r"layer 1 has no 'self_attn\.[\w.]+', but layer 3 has"):
        describe(small_k3(mla=(3,)))


def test_the_width_of_experts_is_refused_today(small_k3):
    with pytest.raises(CheckpointError, match=r"config.json says moe_intermediate_size = 96, but '.*w1' has the shape"):
        describe(small_k3(expert_width="moe_intermediate_size"))
