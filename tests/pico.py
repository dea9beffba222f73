"""Random checkpoints in every stored format and naming, small enough to write hundreds of them.

`write_pico(folder, kind)` writes one; `KINDS` describes each kind. The shapes are those of the Kimi-K2 family
(`families/kimi_k25/geometry.py`) with other numbers; safetensors itself writes the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from halfbyte.checkpoint.headers import TensorSpec
from halfbyte.families.kimi_k25 import geometry as shapes
from halfbyte.families.kimi_k25.geometry import Geometry, Linear
from halfbyte.formats.codec import encode
from halfbyte.formats.encoded import array_to_torch
from halfbyte.formats.reference.floats import f32_to_bf16

MLP = ("dense_mlp", "shared_experts", "routed_experts")
SMALL = Geometry(
    layers=3,
    experts=4,
    active_experts=2,
    width=64,
    dense_width=96,
    expert_width=32,
    vocabulary=128,
    heads=2,
    q_rank=32,
    kv_rank=32,
    nope_width=32,
    rope_width=16,
    value_width=32,
    vision_blocks=1,
    vision_width=32,
    vision_mlp_width=48,
    vision_grid=4,
)
# Code that must never run when a checkpoint is read.
NEVER_RUN = 'raise RuntimeError("code from a checkpoint was run")\n'
MODELOPT_GROUP = {
    "input_activations": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
    "weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16},
    "targets": ["Linear"],
}
TOP_LEVEL_CONFIG: Mapping[str, dict[str, Any]] = {
    "int4": shapes.int4_config(),
    "fp8_block": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "fp8_channel": {"format": "float-quantized", "quant_method": "compressed-tensors", "ignore": ["lm_head"]},
    "nvfp4": {"config_groups": {"group_0": MODELOPT_GROUP}, "quant_algo": "NVFP4", "quant_method": "modelopt"},
    "nvfp4_ct": {"format": "nvfp4-pack-quantized", "quant_method": "compressed-tensors", "ignore": ["lm_head"]},
    "mxfp4": {"quant_method": "quark", "exclude": ["lm_head"], "export": {"kv_cache_group": []}},
    "mxfp4_ct": {"format": "mxfp4-pack-quantized", "quant_method": "compressed-tensors", "ignore": ["lm_head"]},
}


@dataclass(frozen=True)
class Kind:
    """The properties of a kind of checkpoint."""

    format: str
    quantized: tuple[str, ...] = ("routed_experts",)
    vision: bool = True
    inv_freq: bool = False
    kv_scales: bool = False
    input_scale: str | None = None
    config_at: str = "top"  # where quantization_config lies: top, text
    shards: str = "release"  # release: one layer each; numbered: likewise, without padding; single; spread
    model_type: str = "kimi_k25"
    dtypes: Mapping[str, str] = field(default_factory=dict)  # by suffix, where they differ from the format's row
    group: int = 32


KINDS: Mapping[str, Kind] = {
    "int4-k2.6": Kind("int4", config_at="text"),
    "int4-k2-thinking": Kind("int4", vision=False, inv_freq=True, model_type="kimi_k2"),
    "int4-g64": Kind("int4", vision=False, model_type="kimi_k2", group=64),
    "fp8-block-k2": Kind(
        "fp8_block",
        (*MLP, "attention"),
        vision=False,
        inv_freq=True,
        shards="numbered",
        model_type="kimi_k2",
    ),
    "fp8-channel": Kind("fp8_channel", (*MLP, "attention"), vision=False, model_type="deepseek_v3"),
    "bf16": Kind("bf16", (), vision=False, shards="single", model_type="deepseek_v3"),
    "nvfp4": Kind("nvfp4", MLP, kv_scales=True, input_scale="input_scale"),
    "nvfp4_ct": Kind("nvfp4_ct", input_scale="input_global_scale"),
    "mxfp4": Kind("mxfp4"),
    "mxfp4_ct": Kind("mxfp4_ct"),
    "spread": Kind("int4", config_at="text", shards="spread", dtypes={"weight_shape": "I64"}),
    "qwen3-moe": Kind("bf16", (), vision=False, model_type="qwen3_moe"),
}


def write_pico(
    folder: Path,
    kind: str = "int4-k2.6",
    *,
    layers: int = 3,
    experts: int = 4,
    hidden: int = 64,
    expert_width: int = 32,
    seed: int = 0,
) -> Path:
    """Write a checkpoint of a kind into a folder and return the folder."""
    row = KINDS[kind]
    geometry = replace(
        SMALL,
        layers=layers,
        experts=experts,
        active_experts=min(2, experts),
        width=hidden,
        expert_width=max(expert_width, row.group),
        dense_layers=0 if row.model_type == "qwen3_moe" else 1,
        vision_blocks=1 if row.vision else 0,
        prefix="language_model." if row.vision else "",
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(folder, _in_shards(_Filler(row, geometry, seed), row.shards), single=row.shards == "single")
    (folder / "config.json").write_text(json.dumps(_config(row, geometry), indent=2))
    _write_small_files(folder, row)
    return folder


def write_shards(folder: Path, shards: Mapping[str, Mapping[str, Any]], *, single: bool = False) -> None:
    """Write PyTorch tensors by shard and name, and their index."""
    from safetensors.torch import save_file

    for shard, tensors in shards.items():
        save_file(dict(tensors), folder / shard)
    if single:
        return
    total = sum(t.numel() * t.element_size() for tensors in shards.values() for t in tensors.values())
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


class _Filler:
    """Random tensors for one kind and geometry, in the groups that a release would write as shards."""

    def __init__(self, kind: Kind, geometry: Geometry, seed: int) -> None:
        self.kind, self.geometry = kind, geometry
        self.random = np.random.default_rng(seed)

    def groups(self) -> Iterator[dict[str, Any]]:
        g = self.geometry
        for layer in range(g.layers):
            yield self.layer(layer)
        yield self.plain(shapes.ends(g))
        if self.kind.vision:
            yield self.plain(shapes.projector(g))
            yield self.plain(shapes.vision_tower(g))

    def layer(self, layer: int) -> dict[str, Any]:
        if self.kind.model_type == "qwen3_moe":
            return self.qwen_layer(layer)
        tensors = self.plain(shapes.layer_others(self.geometry, layer))
        for linear in shapes.layer_linears(self.geometry, layer):
            tensors |= self.linear(linear)
        at = f"{self.geometry.prefix}model.layers.{layer}.self_attn"
        if self.kind.inv_freq:
            tensors |= self.plain([TensorSpec(f"{at}.rotary_emb.inv_freq", "F32", (self.geometry.rope_width,))])
        if self.kind.kv_scales:
            tensors |= self.plain(TensorSpec(f"{at}.{c}_proj.{c}_scale", "F32", ()) for c in "kv")
        return tensors

    def qwen_layer(self, layer: int) -> dict[str, Any]:
        g, at = self.geometry, f"model.layers.{layer}"
        head = g.value_width
        specs = [TensorSpec(f"{at}.{c}_layernorm.weight", "BF16", (g.width,)) for c in ("input", "post_attention")]
        specs += [TensorSpec(f"{at}.self_attn.{c}_norm.weight", "BF16", (head,)) for c in "qk"]
        specs += [TensorSpec(f"{at}.self_attn.q_proj.weight", "BF16", (g.heads * head, g.width))]
        specs += [TensorSpec(f"{at}.self_attn.{c}_proj.weight", "BF16", (head, g.width)) for c in "kv"]
        specs += [TensorSpec(f"{at}.self_attn.o_proj.weight", "BF16", (g.width, g.heads * head))]
        specs += [TensorSpec(f"{at}.mlp.gate.weight", "BF16", (g.experts, g.width))]
        tensors = self.plain(specs)
        for linear in shapes.layer_linears(g, layer):
            if linear.role == "routed_experts":
                tensors |= self.linear(linear)
        return tensors

    def plain(self, specs: Any) -> dict[str, Any]:
        return {spec.name: self.random_tensor(spec) for spec in specs}

    def random_tensor(self, spec: TensorSpec) -> Any:
        values = np.array(self.random.standard_normal(spec.shape) / 50, np.float32)
        if "norm" in spec.name and spec.name.endswith("weight"):
            values = values + 1
        if spec.name.endswith("_scale") or "inv_freq" in spec.name:
            values = np.abs(values) + np.float32(0.01)
        return array_to_torch(f32_to_bf16(values) if spec.dtype == "BF16" else np.asarray(values), spec.dtype)

    def linear(self, linear: Linear) -> dict[str, Any]:
        quantized = linear.role in self.kind.quantized
        format = self.kind.format if quantized else "bf16"
        values = np.float32(self.random.standard_normal((linear.n, linear.k)) / 50)
        parts = self.encoded(values, format)
        if quantized and self.kind.input_scale:
            shape = () if self.kind.input_scale == "input_scale" else (1,)
            parts[self.kind.input_scale] = array_to_torch(np.full(shape, 0.01, np.float32), "F32")
        return {f"{linear.module}.{suffix}": tensor for suffix, tensor in parts.items()}

    def encoded(self, values: Any, format: str) -> dict[str, Any]:
        import torch

        if format == "bf16":
            return {"weight": array_to_torch(f32_to_bf16(values), "BF16")}
        if format == "fp8_block":
            blocks = tuple(-(-size // 128) for size in values.shape)
            scale_inv = torch.full(blocks, float(np.abs(values).max()) / 448)
            return {
                "weight": (torch.from_numpy(values) / scale_inv[0, 0]).to(torch.float8_e4m3fn),
                "weight_scale_inv": scale_inv,
            }
        parts = encode(values, format, group=self.kind.group).to_torch()
        wide = {"I64": torch.int64, "F32": torch.float32}
        return {s: t.to(wide[self.kind.dtypes[s]]) if s in self.kind.dtypes else t for s, t in parts.items()}


def _in_shards(filler: _Filler, layout: str) -> dict[str, dict[str, Any]]:
    groups = list(filler.groups())
    if layout == "single":
        return {"model.safetensors": {name: tensor for group in groups for name, tensor in group.items()}}
    if layout == "spread":
        names = [name for group in groups for name in group]
        filler.random.shuffle(names)
        every = {name: tensor for group in groups for name, tensor in group.items()}
        groups = [{name: every[name] for name in names[start::5]} for start in range(5)]
    count = len(groups)
    pattern = "model-{}-of-{}.safetensors" if layout == "numbered" else "model-{:05d}-of-{:06d}.safetensors"
    return {pattern.format(i, count): group for i, group in enumerate(groups, 1)}


def _config(kind: Kind, geometry: Geometry) -> dict[str, Any]:
    config = shapes.release_config(geometry) if kind.vision else shapes.text_config(geometry)
    config["model_type"] = kind.model_type
    if kind.vision and kind.config_at == "text":
        return config
    (config["text_config"] if kind.vision else config).pop("quantization_config")
    if kind.format in TOP_LEVEL_CONFIG:
        config["quantization_config"] = TOP_LEVEL_CONFIG[kind.format]
    if kind.model_type == "qwen3_moe":
        config = {
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": geometry.width,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": geometry.expert_width,
            "num_experts": geometry.experts,
            "num_experts_per_tok": geometry.active_experts,
            "num_hidden_layers": geometry.layers,
            "vocab_size": geometry.vocabulary,
        }
    return config


def _write_small_files(folder: Path, kind: Kind) -> None:
    texts = {
        "generation_config.json": '{"max_length": 262144, "eos_token_id": 163586}',
        "tokenizer_config.json": '{"tokenizer_class": "TikTokenTokenizer"}',
        "tiktoken.model": "aGFsZg== 0\nYnl0ZQ== 1\n",
        "chat_template.jinja": "{%- for message in messages -%}{{ message.content }}{%- endfor -%}",
        "LICENSE": "Anyone may read this file.\n",
        "modeling_deepseek.py": NEVER_RUN,
        "figures/score.svg": "<svg/>",
    }
    if kind.format == "nvfp4":
        texts["hf_quant_config.json"] = '{"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}'
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
