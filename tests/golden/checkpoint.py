"""A small INT4 checkpoint with DeepSeek-V3's names and shapes: the same bytes on every machine.

Routed experts are stored as in Kimi's releases (compressed-tensors, pack-quantized, groups of 32, scales amax / 7),
everything else is BF16 or F32. Shards are written and read here byte by byte, independent of the peers and of halfbyte.
Only numpy is needed.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import inputs
import numpy as np

LAYERS, DENSE_LAYERS, EXPERTS = 3, 1, 4
HIDDEN, DENSE_WIDTH, EXPERT_WIDTH, VOCABULARY = 128, 192, 64, 160
HEADS, Q_RANK, KV_RANK, NOPE, ROPE, VALUE = 4, 64, 32, 32, 32, 32

DTYPES = {"uint16": "BF16", "int32": "I32", "float32": "F32"}  # BF16 is held as its bit patterns

Tensors = dict[str, np.ndarray]

QUANTIZATION = {
    "config_groups": {
        "group_0": {
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "strategy": "group",
                "symmetric": True,
                "type": "int",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
TEXT = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "eos_token_id": 3,
    "first_k_dense_replace": DENSE_LAYERS,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": DENSE_WIDTH,
    "kv_lora_rank": KV_RANK,
    "max_position_embeddings": 4096,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": EXPERT_WIDTH,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": Q_RANK,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE,
    "quantization_config": QUANTIZATION,
    "rms_norm_eps": 1e-05,
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


def bf16(seed: int, *shape: int) -> np.ndarray:
    """A BF16 weight."""
    return inputs.gaussian(seed, shape)


def norm(seed: int, width: int) -> np.ndarray:
    """A norm's weight, near 1."""
    return inputs.to_bf16(1.0 + (inputs.integers(seed, (width,), 65) - 32) / 256.0)


def float32(seed: int, width: int) -> np.ndarray:
    """F32 values of 24 significant bits."""
    return (inputs.integers(seed, (width,), 2**24) * 2.0**-24).astype(np.float32)


def int4(name: str, seed: int, shape: tuple[int, int]) -> Tensors:
    """One expert matrix on Kimi's grid: every fourth has heavy tails, every fifth some all-zero groups."""
    weights = inputs.heavy_tails(seed, shape) if seed % 4 == 0 else inputs.gaussian(seed, shape)
    codes, scale = inputs.kimi_grid(weights)
    if seed % 5 == 0:
        codes[::7, 32:64] = 0
    return {
        f"{name}.weight_packed": inputs.pack_int4(codes),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": np.array(shape, np.int32),
    }


def attention(name: str, seed: int) -> Tensors:
    """MLA's projections and norms, and the rope table that Kimi's releases hold."""
    return {
        f"{name}.q_a_proj.weight": bf16(seed, Q_RANK, HIDDEN),
        f"{name}.q_a_layernorm.weight": norm(seed + 1, Q_RANK),
        f"{name}.q_b_proj.weight": bf16(seed + 2, HEADS * (NOPE + ROPE), Q_RANK),
        f"{name}.kv_a_proj_with_mqa.weight": bf16(seed + 3, KV_RANK + ROPE, HIDDEN),
        f"{name}.kv_a_layernorm.weight": norm(seed + 4, KV_RANK),
        f"{name}.kv_b_proj.weight": bf16(seed + 5, HEADS * (NOPE + VALUE), KV_RANK),
        f"{name}.o_proj.weight": bf16(seed + 6, HIDDEN, HEADS * VALUE),
        f"{name}.rotary_emb.inv_freq": float32(seed + 7, ROPE // 2),
    }


def mlp_shapes(width: int) -> dict[str, tuple[int, int]]:
    """The three matrices of an MLP."""
    return {"gate_proj": (width, HIDDEN), "up_proj": (width, HIDDEN), "down_proj": (HIDDEN, width)}


def dense(name: str, seed: int, width: int) -> Tensors:
    """An MLP in BF16."""
    return {
        f"{name}.{leaf}.weight": bf16(seed + i, *shape) for i, (leaf, shape) in enumerate(mlp_shapes(width).items())
    }


def experts(name: str, seed: int) -> Tensors:
    """Router, shared expert and routed experts."""
    made = {
        f"{name}.gate.weight": bf16(seed, EXPERTS, HIDDEN),
        f"{name}.gate.e_score_correction_bias": float32(seed + 1, EXPERTS),
        **dense(f"{name}.shared_experts", seed + 2, EXPERT_WIDTH),
    }
    for expert in range(EXPERTS):
        for i, (leaf, shape) in enumerate(mlp_shapes(EXPERT_WIDTH).items()):
            made |= int4(f"{name}.experts.{expert}.{leaf}", seed + 10 + 3 * expert + i, shape)
    return made


def layer(number: int) -> Tensors:
    """One decoder layer."""
    name, seed = f"model.layers.{number}", 10_000 + 100 * number
    mlp = dense(f"{name}.mlp", seed + 20, DENSE_WIDTH) if number < DENSE_LAYERS else experts(f"{name}.mlp", seed + 20)
    return {
        f"{name}.input_layernorm.weight": norm(seed, HIDDEN),
        f"{name}.post_attention_layernorm.weight": norm(seed + 1, HIDDEN),
        **attention(f"{name}.self_attn", seed + 2),
        **mlp,
    }


def shards() -> list[Tensors]:
    """One shard per layer; the first one also has the embeddings, the last one the head."""
    made = [layer(number) for number in range(LAYERS)]
    made[0]["model.embed_tokens.weight"] = bf16(9_001, VOCABULARY, HIDDEN)
    made[-1] |= {"model.norm.weight": norm(9_002, HIDDEN), "lm_head.weight": bf16(9_003, VOCABULARY, HIDDEN)}
    return made


# Files


def write_shard(path: Path, tensors: Tensors) -> None:
    """A safetensors file."""
    header: dict[str, Any] = {}
    begin = 0
    for name, array in tensors.items():
        end = begin + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(a.tobytes() for a in tensors.values()))


def write(folder: Path, *, prefix: str = "") -> Path:
    """Write the checkpoint; with a prefix, under K2.5's model type with a nested text config."""
    folder.mkdir(parents=True)
    config: Mapping[str, Any] = TEXT
    if prefix:
        text = TEXT | {"model_type": "kimi_k2"}
        config = {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "text_config": text,
            "torch_dtype": "bfloat16",
        }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weight_map, total = {}, 0
    for number, tensors in enumerate(shards(), 1):
        named = {prefix + name: array for name, array in tensors.items()}
        shard = f"model-{number:05d}-of-{LAYERS:06d}.safetensors"
        write_shard(folder / shard, named)
        weight_map |= dict.fromkeys(named, shard)
        total += sum(array.nbytes for array in named.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    return folder


def read_shard(path: Path) -> Iterator[tuple[str, str]]:
    """Each tensor's name, and in one line its dtype, its shape and the SHA-256 of its bytes."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            digest = hashlib.sha256(content[start + begin : start + end]).hexdigest()
            yield name, f"{entry['dtype']} {'x'.join(map(str, entry['shape']))} {digest}"


def contents(folder: Path) -> dict[str, str]:
    """Every tensor of a checkpoint by name; duplicates are an error."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, line in read_shard(path):
            if name in found:
                raise ValueError(f"{name} is in two shards")
            found[name] = line
    return dict(sorted(found.items()))


def sha256(folder: Path) -> str:
    """One hash of all tensors and names, independent of shards."""
    return hashlib.sha256(json.dumps(contents(folder)).encode()).hexdigest()
