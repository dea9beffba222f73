"""Tensor names, shapes and dtypes of the Kimi-K2 family, for any number of layers and experts.

The defaults reproduce the Kimi-K2.6 release to the byte: 64 shards and 208,550 tensors with 595,148,192,736 bytes, plus
29,795,472 bytes of headers. Benchmarks and tests build smaller variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from halfbyte.checkpoint.headers import TensorSpec
from halfbyte.formats.registry import FORMATS

_PATCH = (3, 14, 14)  # color channels and pixels of a MoonViT patch
_MERGED_PATCHES = 4  # 2x2 patches become one token


@dataclass(frozen=True, slots=True)
class Geometry:
    """The dimensions in config.json; widths are counted in values."""

    layers: int = 61
    dense_layers: int = 1
    experts: int = 384
    active_experts: int = 8
    width: int = 7168
    dense_width: int = 18432
    expert_width: int = 2048
    vocabulary: int = 163840
    heads: int = 64
    q_rank: int = 1536
    kv_rank: int = 512
    nope_width: int = 128
    rope_width: int = 64
    value_width: int = 128
    vision_blocks: int = 27
    vision_width: int = 1152
    vision_mlp_width: int = 4304
    vision_grid: int = 64
    prefix: str = "language_model."


KIMI_K26 = Geometry()


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear with N outputs and K inputs, independent of its format."""

    role: str
    module: str
    n: int
    k: int

    def tensors(self, format: str) -> list[TensorSpec]:
        """Return its tensors in a format."""
        parts = FORMATS[format].tensors
        return [TensorSpec(f"{self.module}.{part.suffix}", part.dtype, part.shape(self.n, self.k)) for part in parts]


def layer_linears(geometry: Geometry, layer: int) -> Iterator[Linear]:
    """Yield the linears of one decoder layer."""
    g, at = geometry, f"{geometry.prefix}model.layers.{layer}"
    yield Linear("attention", f"{at}.self_attn.q_a_proj", g.q_rank, g.width)
    yield Linear("attention", f"{at}.self_attn.q_b_proj", g.heads * (g.nope_width + g.rope_width), g.q_rank)
    yield Linear("attention", f"{at}.self_attn.kv_a_proj_with_mqa", g.kv_rank + g.rope_width, g.width)
    yield Linear("attention", f"{at}.self_attn.kv_b_proj", g.heads * (g.nope_width + g.value_width), g.kv_rank)
    yield Linear("attention", f"{at}.self_attn.o_proj", g.width, g.heads * g.value_width)
    if layer < g.dense_layers:
        yield from _mlp("dense_mlp", f"{at}.mlp", g.width, g.dense_width)
        return
    yield from _mlp("shared_experts", f"{at}.mlp.shared_experts", g.width, g.expert_width)
    for expert in range(g.experts):
        yield from _mlp("routed_experts", f"{at}.mlp.experts.{expert}", g.width, g.expert_width)


def _mlp(role: str, module: str, width: int, inner: int) -> Iterator[Linear]:
    yield Linear(role, f"{module}.gate_proj", inner, width)
    yield Linear(role, f"{module}.up_proj", inner, width)
    yield Linear(role, f"{module}.down_proj", width, inner)


def layer_others(geometry: Geometry, layer: int) -> Iterator[TensorSpec]:
    """Yield the tensors of a decoder layer outside its linears."""
    g, at = geometry, f"{geometry.prefix}model.layers.{layer}"
    yield TensorSpec(f"{at}.input_layernorm.weight", "BF16", (g.width,))
    yield TensorSpec(f"{at}.post_attention_layernorm.weight", "BF16", (g.width,))
    yield TensorSpec(f"{at}.self_attn.q_a_layernorm.weight", "BF16", (g.q_rank,))
    yield TensorSpec(f"{at}.self_attn.kv_a_layernorm.weight", "BF16", (g.kv_rank,))
    if layer >= g.dense_layers:
        yield TensorSpec(f"{at}.mlp.gate.weight", "BF16", (g.experts, g.width))
        yield TensorSpec(f"{at}.mlp.gate.e_score_correction_bias", "F32", (g.experts,))


def ends(geometry: Geometry) -> Iterator[TensorSpec]:
    """Yield the embedding, the final norm and the head."""
    g = geometry
    yield TensorSpec(f"{g.prefix}model.embed_tokens.weight", "BF16", (g.vocabulary, g.width))
    yield TensorSpec(f"{g.prefix}model.norm.weight", "BF16", (g.width,))
    yield TensorSpec(f"{g.prefix}lm_head.weight", "BF16", (g.vocabulary, g.width))


def projector(geometry: Geometry) -> Iterator[TensorSpec]:
    """Yield the projector from the vision tower to the text model."""
    merged = _MERGED_PATCHES * geometry.vision_width
    yield from _with_bias("mm_projector.pre_norm", (geometry.vision_width,))
    yield from _with_bias("mm_projector.proj.0", (merged, merged))
    yield from _with_bias("mm_projector.proj.2", (geometry.width, merged))


def vision_tower(geometry: Geometry) -> Iterator[TensorSpec]:
    """Yield the tensors of MoonViT."""
    width, inner, grid = geometry.vision_width, geometry.vision_mlp_width, geometry.vision_grid
    yield from _with_bias("vision_tower.patch_embed.proj", (width, *_PATCH))
    yield TensorSpec("vision_tower.patch_embed.pos_emb.weight", "BF16", (grid, grid, width))
    for block in range(geometry.vision_blocks):
        at = f"vision_tower.encoder.blocks.{block}"
        yield from _with_bias(f"{at}.norm0", (width,))
        yield from _with_bias(f"{at}.norm1", (width,))
        yield from _with_bias(f"{at}.wqkv", (3 * width, width))
        yield from _with_bias(f"{at}.wo", (width, width))
        yield from _with_bias(f"{at}.mlp.fc0", (inner, width))
        yield from _with_bias(f"{at}.mlp.fc1", (width, inner))
    yield from _with_bias("vision_tower.encoder.final_layernorm", (width,))


def _with_bias(module: str, shape: tuple[int, ...]) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{module}.weight", "BF16", shape)
    yield TensorSpec(f"{module}.bias", "BF16", shape[:1])


def release_shards(geometry: Geometry) -> dict[str, list[TensorSpec]]:
    """Return the shards of an INT4 release: one per layer, then embedding and head, the projector, the vision tower."""
    shards: list[list[TensorSpec]] = []
    for layer in range(geometry.layers):
        specs = list(layer_others(geometry, layer))
        for linear in layer_linears(geometry, layer):
            specs += linear.tensors("int4" if linear.role == "routed_experts" else "bf16")
        shards.append(specs)
    shards.append(list(ends(geometry)))
    if geometry.vision_blocks:
        shards += [list(projector(geometry)), list(vision_tower(geometry))]
    # Moonshot writes five digits for the number and six for the total.
    return {f"model-{i:05d}-of-{len(shards):06d}.safetensors": specs for i, specs in enumerate(shards, 1)}


def text_config(geometry: Geometry) -> dict[str, Any]:
    """Return the text model's section of config.json."""
    g = geometry
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 163584,
        "dtype": "bfloat16",
        "eos_token_id": 163586,
        "first_k_dense_replace": g.dense_layers,
        "hidden_act": "silu",
        "hidden_size": g.width,
        "intermediate_size": g.dense_width,
        "kv_lora_rank": g.kv_rank,
        "max_position_embeddings": 262144,
        "model_type": "kimi_k2",
        "moe_intermediate_size": g.expert_width,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": g.experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": g.heads,
        "num_experts_per_tok": g.active_experts,
        "num_hidden_layers": g.layers,
        "num_key_value_heads": g.heads,
        "num_nextn_predict_layers": 0,
        "pad_token_id": 163839,
        "q_lora_rank": g.q_rank,
        "qk_nope_head_dim": g.nope_width,
        "qk_rope_head_dim": g.rope_width,
        "quantization_config": int4_config(),
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
        "v_head_dim": g.value_width,
        "vocab_size": g.vocabulary,
    }


def int4_config() -> dict[str, Any]:
    """Return the quantization_config of Kimi's INT4 releases."""
    weights: dict[str, Any] = {
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
    }
    group: dict[str, Any] = {
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": [
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*",
            "re:vision_tower.*",
            "re:mm_projector.*",
        ],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def release_config(geometry: Geometry) -> dict[str, Any]:
    """Return the config.json of a release with vision: the keys that matter, in the release's order."""
    g = geometry
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "bos_token_id": 163584,
        "dtype": "bfloat16",
        "eos_token_id": 163586,
        "ignore_index": -100,
        "media_placeholder_token_id": 163605,
        "model_type": "kimi_k25",
        "pad_token_id": 163839,
        "text_config": text_config(g),
        "tie_word_embeddings": False,
        "use_unified_vision_chunk": True,
        "vision_config": {
            "init_pos_emb_height": g.vision_grid,
            "init_pos_emb_time": 4,
            "init_pos_emb_width": g.vision_grid,
            "merge_kernel_size": [2, 2],
            "merge_type": "sd2_tpool",
            "mm_hidden_size": g.vision_width,
            "mm_projector_type": "patchmerger",
            "patch_size": _PATCH[-1],
            "pos_emb_type": "divided_fixed",
            "projector_hidden_act": "gelu",
            "projector_ln_eps": 1e-05,
            "text_hidden_size": g.width,
            "video_attn_type": "spatial_temporal",
            "vt_hidden_size": g.vision_width,
            "vt_intermediate_size": g.vision_mlp_width,
            "vt_num_attention_heads": 16,
            "vt_num_hidden_layers": g.vision_blocks,
        },
    }
