"""config.json of every family as transformers reads it; unsupported ones are rejected with one error."""

import json

import pytest
import torch
from resident import own_config, packed
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from halfbyte.errors import CheckpointError, HalfbyteError, UsageError
from halfbyte.families.kimi_k25 import geometry
from halfbyte.families.registry import text_model
from halfbyte.forward.positions import attention_inputs

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")  # no forward reads them
YARN = {
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "factor": 32.0,
    "mscale": 0.707,  # another one than mscale_all_dim, so that both matter
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}


def wrapped():
    return geometry.release_config(geometry.Geometry(layers=2))


def plain(model_type="kimi_k2"):
    return geometry.text_config(geometry.Geometry(layers=2)) | {"model_type": model_type, "rope_scaling": dict(YARN)}


def old_to_new(config):
    """Convert RoPE keys to transformers 5."""
    rope = {**config["rope_scaling"], "rope_theta": config["rope_theta"]}
    rope["rope_type"] = rope.pop("type")
    return {k: v for k, v in config.items() if k not in ("rope_scaling", "rope_theta")} | {"rope_parameters": rope}


CONFIGS = {
    "K2.5": wrapped(),
    "K2": plain(),
    "DeepSeek-V3": plain("deepseek_v3") | {"n_group": 8, "topk_group": 4},
    "new rope": old_to_new(plain()),
    "no yarn": {key: value for key, value in plain().items() if key != "rope_scaling"},
    "no q rank": plain() | {"q_lora_rank": None},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_what_transformers_makes_of_it(name):
    config = CONFIGS[name]
    before = json.dumps(config)
    found, expected = text_model(config).config, own_config(config)
    assert json.dumps(config) == before
    fields = found.to_dict()
    fields.pop("_attn_implementation", None)
    different = {key for key, value in fields.items() if getattr(expected, key, None) != value}
    assert different <= {"architectures", "dtype", "model_type", "transformers_version", *TOKENS}
    with torch.device("meta"):
        assert DeepseekV3Attention(found, 0).scaling == DeepseekV3Attention(expected, 0).scaling
    ours, theirs = DeepseekV3RotaryEmbedding(found), DeepseekV3RotaryEmbedding(expected)
    assert torch.equal(ours.inv_freq, theirs.inv_freq)
    assert ours.attention_scaling == theirs.attention_scaling
    rows = packed([[3, 5]], 8)
    inputs = attention_inputs(text_model(config), rows, slice(0, 1), torch.float32)
    cos, sin = theirs(torch.empty(0), torch.from_numpy(rows.positions))
    assert torch.equal(inputs.cos, cos)
    assert torch.equal(inputs.sin, sin)


def test_old_and_new_rope_are_the_same():
    old, new = (DeepseekV3RotaryEmbedding(text_model(config).config) for config in (plain(), old_to_new(plain())))
    assert torch.equal(old.inv_freq, new.inv_freq)
    assert old.attention_scaling == new.attention_scaling != 1


def test_names_begin_as_the_family_writes_them():
    assert text_model(wrapped()).layer(1) == "language_model.model.layers.1."
    assert text_model(plain()).layer(1) == "model.layers.1."


def without(key):
    return {name: value for name, value in plain().items() if name != key}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (plain("qwen3_moe"), "unsupported model_type 'qwen3_moe'"),
        (without("model_type"), "unknown model_type None"),
        (wrapped() | {"text_config": None}, "no text_config"),
        (wrapped() | {"text_config": plain("kimi_linear")}, "unsupported model_type 'kimi_linear'"),
        (without("kv_lora_rank"), "no kv_lora_rank"),
        (without("q_lora_rank"), "no q_lora_rank"),
        (without("rope_theta"), "no rope_theta"),
        ({"model_type": "deepseek_v3"}, r"no first_k_dense_replace \(and \d+ more\)"),
        (plain() | {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        (plain() | {"topk_method": "group_limited_greedy"}, "topk_method"),
        (plain() | {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        (plain() | {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (plain() | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        (plain() | {"hidden_size": "wide"}, "transformers rejects config.json"),
    ],
)
def test_what_cannot_be_run_is_refused(config, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        text_model(config)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_attention_is_one_of_two():
    with pytest.raises(UsageError, match="flash") as caught:
        text_model(plain(), "flash")
    assert isinstance(caught.value, HalfbyteError)
