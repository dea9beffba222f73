"""A small checkpoint as decoded tensors, and transformers' own complete model of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.kimi_k25 import Kimi_K25Config

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.families.linears import read_linear
from halfbyte.families.model import describe
from halfbyte.families.registry import text_model
from halfbyte.formats.codec import decode
from halfbyte.formats.encoded import array_to_torch
from halfbyte.forward.embedding_and_head import Head, embed
from halfbyte.forward.model import TextModel
from halfbyte.forward.ordered_threads import single_threaded
from halfbyte.forward.positions import attention_inputs
from halfbyte.forward.run import row_chunks, run_layer

GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


@dataclass
class Small:
    """A checkpoint decoded to BF16, with F32 tensors unchanged."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def model(self, attention: str = "sdpa") -> TextModel:
        return text_model(self.config, attention)

    def expert(self, model: TextModel, layer: int, dtype: torch.dtype):
        at = f"{model.layer(layer)}mlp.experts"
        return lambda e: tuple(self.tensors[f"{at}.{e}.{leaf}.weight"].to(dtype) for leaf in GATE_UP_DOWN)


def read_small(folder: Path, *, spread: float = 8.0) -> Small:
    """Decode a checkpoint; `spread` scales its weights, so that layers have an effect."""
    checkpoint = open_checkpoint(folder)
    found = describe(checkpoint)
    tensors: dict[str, torch.Tensor] = {}
    with Reader(checkpoint) as reader:
        for module, linear in found.linears.items():
            bits = decode(read_linear(linear, reader), threads=1)
            tensors[f"{module}.weight"] = array_to_torch(bits, "BF16") * spread
        for name, (_, info) in found.plain.items():
            widened = 1 if "norm" in name else spread
            tensors[name] = array_to_torch(np.array(reader.tensor(info)), info.dtype) * widened
    return Small(json.loads((folder / "config.json").read_text()), tensors)


def own_config(config: dict[str, Any]) -> DeepseekV3Config:
    """Return transformers' own config for a config.json, without the checkpoint's code."""
    config = json.loads(json.dumps(config))
    config.get("text_config", config).pop("quantization_config", None)
    if config["model_type"] == "kimi_k25":
        found = Kimi_K25Config(**config).text_config
    else:
        found = DeepseekV3Config(**{key: value for key, value in config.items() if key != "model_type"})
    found.pad_token_id = None  # of the real vocabulary, not of the small one
    return found


def resident(small: Small, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """Return transformers' model with the same weights, its experts run as in ModelOpt."""
    config, prefix = own_config(small.config), small.model().layer(0).removesuffix("model.layers.0.")
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM._from_config(config, attn_implementation=attention)
    model.set_experts_implementation("eager")
    state = {}
    for name in model.state_dict():
        base, _, leaf = f"{prefix}{name}".rpartition(".mlp.experts.")
        experts = [f"{base}.mlp.experts.{expert}" for expert in range(config.n_routed_experts)]
        if leaf == "gate_up_proj":
            pairs = [[small.tensors[f"{at}.{leaf}.weight"] for leaf in GATE_UP_DOWN[:2]] for at in experts]
            state[name] = torch.stack([torch.cat(pair) for pair in pairs])
        elif leaf == "down_proj":
            state[name] = torch.stack([small.tensors[f"{at}.down_proj.weight"] for at in experts])
        else:
            state[name] = small.tensors[prefix + name]
        if not name.endswith("e_score_correction_bias"):  # FP32 in from_pretrained for any dtype
            state[name] = state[name].to(dtype)
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # it has buffers that no checkpoint holds
    return model.eval()


@torch.no_grad()
def run_resident(model: Any, **inputs: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the hidden states after every layer, and the logits."""
    states: list[torch.Tensor] = []
    hooks = [layer.register_forward_hook(lambda *seen: states.append(seen[2])) for layer in model.model.layers]
    with single_threaded():
        logits = model(**inputs, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return states, logits.float()


def left_padded(rows: int, length: int, words: int, seed: int = 0) -> SimpleNamespace:
    """Rows with decreasing padding; the last has none. Positions follow transformers, which ignores padding."""
    random = np.random.default_rng(seed)
    lengths = np.linspace(length // 2, length, rows).astype(int)
    real = np.arange(length) >= (length - lengths)[:, None]
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    tokens = random.integers(0, words, (rows, length), np.int32)
    return SimpleNamespace(
        tokens=tokens, real=real, positions=positions, documents=np.zeros_like(tokens), left_padded=True
    )


def packed(lengths: list[list[int]], words: int, seed: int = 0) -> SimpleNamespace:
    """Rows of several documents."""
    random = np.random.default_rng(seed)
    positions = np.array([np.concatenate([np.arange(n) for n in row]) for row in lengths], np.int32)
    documents = np.array([np.repeat(np.arange(len(row)), row) for row in lengths], np.int32)
    tokens = random.integers(0, words, positions.shape, np.int32)
    real = np.ones(positions.shape, bool)
    return SimpleNamespace(tokens=tokens, real=real, positions=positions, documents=documents, left_padded=False)


def streamed(
    small: Small, rows: Any, dtype: torch.dtype, *, attention: str = "sdpa", chunk: int = 8, **how: Any
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the hidden states after every layer, and the logits: one layer at a time."""
    model = small.model(attention)
    words = small.tensors[model.embedding]
    hidden = embed(torch.from_numpy(rows.tokens).long(), words, dtype)
    states: list[torch.Tensor] = []
    for index in range(model.layers):
        layer, expert = model.decoder_layer(index, small.tensors, dtype), small.expert(model, index, dtype)
        chunks = row_chunks(len(rows.tokens), chunk)
        run_layer(layer, hidden, lambda part: attention_inputs(model, rows, part, dtype), chunks, expert, **how)
        states.append(hidden.clone())
    head = Head(model, small.tensors, dtype)
    with single_threaded():
        logits = head.logits(hidden.flatten(0, 1))
    return states, logits.view(*hidden.shape[:2], -1)
