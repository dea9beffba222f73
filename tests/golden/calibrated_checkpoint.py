"""A small runnable DeepSeek-V3 and its calibration tokens: the same bytes on every machine.

Three layers, the first one dense; MLA, YaRN and sigmoid routing with a correction bias, as in Kimi. Weights are large
enough for realistic activations, and the bias of each layer keeps all tokens from one expert.

There are two models. In `bf16` the routed experts are Gaussian. In `int4` they are on Kimi's INT4 grid, written in two
ways: decoded to BF16, which ModelOpt can read, and packed, as in Kimi's releases. Only numpy is needed.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import checkpoint
import inputs
import numpy as np

LAYERS, DENSE_LAYERS, EXPERTS, CHOSEN_EXPERTS = 3, 1, 8, 2
HIDDEN, DENSE_WIDTH, EXPERT_WIDTH, VOCABULARY = 128, 192, 64, 256
# Keys are wider than values, as in Kimi: torch then takes the same path through its attention.
HEADS, Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 4, 64, 32, 32, 16, 32
LEFT_OUT = {1: 5, 2: 2}  # by layer, the expert that no token reaches

# One of forty. BF16 products differ in their last bit between kernels for AVX2 and for AVX-512; with this seed no amax
# and no choice of an expert does, so that the golden holds on both.
SEED = 130_000

ROWS, LENGTH, BATCH = 14, 64, 4  # the last batch is smaller
PAD = 3
SHORT_ROWS = {1: 40, 3: 5, 6: 63, 7: 22, 9: 50, 12: 33}  # by row, how many real tokens; the others are full

FORMATS = ("bf16", "int4-decoded", "int4")  # the last two are the same model

Tensors = checkpoint.Tensors

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "first_k_dense_replace": DENSE_LAYERS,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": DENSE_WIDTH,
    "kv_lora_rank": KV_RANK,
    "max_position_embeddings": 262144,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": EXPERT_WIDTH,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": CHOSEN_EXPERTS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "num_nextn_predict_layers": 0,
    "pad_token_id": PAD,
    "q_lora_rank": Q_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": VALUE,
    "vocab_size": VOCABULARY,
}


# Tensors; the seed of each is its place in the model


def matrix(seed: int, rows: int, columns: int) -> np.ndarray:
    """Weights that preserve the variance of activations: about 1 / columns."""
    return inputs.gaussian(seed, (rows, columns), sigma=1.0 / math.isqrt(columns))


def expert_matrix(name: str, seed: int, shape: tuple[int, int], storage: str) -> Tensors:
    """One matrix of a routed expert."""
    weights = matrix(seed, *shape)
    if storage == "bf16":
        return {f"{name}.weight": weights}
    codes, scale = inputs.kimi_grid(weights)
    if storage == "int4-decoded":
        return {f"{name}.weight": inputs.decode_int4(codes, scale)}
    return {
        f"{name}.weight_packed": inputs.pack_int4(codes),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": np.array(shape, np.int32),
    }


def attention(name: str, seed: int) -> Tensors:
    """MLA's projections and norms."""
    return {
        f"{name}.q_a_proj.weight": matrix(seed, Q_RANK, HIDDEN),
        f"{name}.q_a_layernorm.weight": checkpoint.norm(seed + 1, Q_RANK),
        f"{name}.q_b_proj.weight": matrix(seed + 2, HEADS * (NOPE + ROPE), Q_RANK),
        f"{name}.kv_a_proj_with_mqa.weight": matrix(seed + 3, KV_RANK + ROPE, HIDDEN),
        f"{name}.kv_a_layernorm.weight": checkpoint.norm(seed + 4, KV_RANK),
        f"{name}.kv_b_proj.weight": matrix(seed + 5, HEADS * (NOPE + VALUE), KV_RANK),
        f"{name}.o_proj.weight": matrix(seed + 6, HIDDEN, HEADS * VALUE),
    }


def mlp_shapes(width: int) -> dict[str, tuple[int, int]]:
    """The three matrices of an MLP."""
    return {"gate_proj": (width, HIDDEN), "up_proj": (width, HIDDEN), "down_proj": (HIDDEN, width)}


def dense(name: str, seed: int, width: int) -> Tensors:
    """An MLP in BF16."""
    shapes = mlp_shapes(width).items()
    return {f"{name}.{leaf}.weight": matrix(seed + i, *shape) for i, (leaf, shape) in enumerate(shapes)}


def correction_bias(seed: int, layer: int) -> np.ndarray:
    """F32, between 0 and a quarter; scores are below 1, so that -8 keeps an expert from ever being chosen."""
    bias = checkpoint.float32(seed, EXPERTS) / np.float32(4)
    bias[LEFT_OUT[layer]] = -8
    return bias


def experts(name: str, seed: int, layer: int, storage: str) -> Tensors:
    """Router, shared expert and routed experts."""
    made = {
        f"{name}.gate.weight": matrix(seed, EXPERTS, HIDDEN),
        f"{name}.gate.e_score_correction_bias": correction_bias(seed + 1, layer),
        **dense(f"{name}.shared_experts", seed + 2, EXPERT_WIDTH),
    }
    for expert in range(EXPERTS):
        for i, (leaf, shape) in enumerate(mlp_shapes(EXPERT_WIDTH).items()):
            made |= expert_matrix(f"{name}.experts.{expert}.{leaf}", seed + 10 + 3 * expert + i, shape, storage)
    return made


def layer_tensors(number: int, storage: str) -> Tensors:
    """One decoder layer."""
    name, seed = f"model.layers.{number}", SEED + 100 * (number + 1)
    if number < DENSE_LAYERS:
        mlp = dense(f"{name}.mlp", seed + 20, DENSE_WIDTH)
    else:
        mlp = experts(f"{name}.mlp", seed + 20, number, storage)
    return {
        f"{name}.input_layernorm.weight": checkpoint.norm(seed, HIDDEN),
        f"{name}.post_attention_layernorm.weight": checkpoint.norm(seed + 1, HIDDEN),
        **attention(f"{name}.self_attn", seed + 2),
        **mlp,
    }


def embeddings() -> np.ndarray:
    """Of about unit size; the padding token has one outlier, so that amax shows whether padding counts."""
    made = inputs.gaussian(SEED + 1, (VOCABULARY, HIDDEN), sigma=1.0)
    made[PAD, 77] = inputs.to_bf16(np.array([24.0]))[0]
    return made


def tensors(storage: str) -> Tensors:
    """The complete checkpoint."""
    made = {"model.embed_tokens.weight": embeddings()}
    for number in range(LAYERS):
        made |= layer_tensors(number, storage)
    head = matrix(SEED + 3, VOCABULARY, HIDDEN)
    return made | {"model.norm.weight": checkpoint.norm(SEED + 2, HIDDEN), "lm_head.weight": head}


def write(folder: Path, storage: str) -> Path:
    """Write config.json and model.safetensors in one of FORMATS."""
    if storage not in FORMATS:
        raise ValueError(f"{storage} is none of {', '.join(FORMATS)}")
    folder.mkdir(parents=True)
    config: Mapping[str, Any] = CONFIG
    if storage == "int4":
        config = CONFIG | {"quantization_config": checkpoint.QUANTIZATION}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    checkpoint.write_shard(folder / "model.safetensors", tensors(storage))
    return folder


# Calibration


def tokens() -> tuple[np.ndarray, np.ndarray]:
    """Token ids and which of them are real, both [ROWS, LENGTH]; short rows are padded on the left."""
    ids = 4 + inputs.integers(SEED + 4, (ROWS, LENGTH), VOCABULARY - 4)
    real = np.ones((ROWS, LENGTH), bool)
    for row, count in SHORT_ROWS.items():
        real[row, : LENGTH - count] = False
    return np.where(real, ids, PAD), real
