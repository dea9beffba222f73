"""Run DeepSeek-V3 layers with transformers' modules: DeepSeek-V3, Kimi-K2, and the text model of Kimi-K2.5."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3ForCausalLM,
    DeepseekV3RMSNorm,
    DeepseekV3RotaryEmbedding,
)

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.family import Family
from halfbyte.forward.experts import Expert
from halfbyte.forward.model import Hook, LinearHooks, Routed, Tensors, TextModel, fetch, load_into
from halfbyte.forward.positions import AttentionInputs

_TEXT_TYPES = ("deepseek_v3", "kimi_k2")  # the Kimi-K2 architecture is DeepSeek-V3
_ROPES = ("default", "linear", "yarn")  # other types depend on the sequence length
# Keys without a reasonable default. A null q_lora_rank means no LoRA; a missing one is an error.
_REQUIRED = (
    "first_k_dense_replace", "hidden_size", "intermediate_size", "kv_lora_rank", "moe_intermediate_size", "n_group",
    "n_routed_experts", "n_shared_experts", "norm_topk_prob", "num_attention_heads", "num_experts_per_tok",
    "num_hidden_layers", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps",
    "routed_scaling_factor", "topk_group", "v_head_dim", "vocab_size",
)  # fmt: skip
# Keys that the original code reads and transformers hard-codes.
_FIXED = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "hidden_act": "silu"}
_OLD_ROPE = ("rope_scaling", "rope_theta")  # before transformers 5, which has both in rope_parameters
_EXTRA_LAYERS = "num_nextn_predict_layers"  # transformers has another name for it, but accepts this one too
# Keys that the forward pass does not read, and that transformers rejects with small vocabularies.
_UNREAD = ("architectures", "bos_token_id", "dtype", "eos_token_id", "model_type", "pad_token_id")
_FIELDS = {field.name for field in dataclasses.fields(DeepseekV3Config)} | {_EXTRA_LAYERS}
_SUPPORTED = "calibrate a checkpoint of the DeepSeek-V3 or Kimi-K2 family"
# The number of experts may differ in pruned models, whose routing is then not compared.
_COMPARABLE = (
    "vocab_size", "num_hidden_layers", "hidden_size", "first_k_dense_replace", "num_experts_per_tok", "n_group",
    "topk_group",
)  # fmt: skip
_ALWAYS_F32 = ("e_score_correction_bias",)  # as in transformers: BF16 would change the routing


def text_model(family: Family, config: Mapping[str, Any], attention: str) -> TextModel:
    """Return the text model of a config.json; raise CheckpointError if it is not supported."""
    text = family.text(config)
    if text.get("model_type", "deepseek_v3" if family.text_config else None) not in _TEXT_TYPES:
        what = f"unsupported model_type '{text.get('model_type')}'"
        raise CheckpointError(what, where="config.json", fix=_SUPPORTED)
    _check(text)
    translated, names = _translate(text, attention), family.forward
    assert names is not None
    return DeepseekV3(
        config=translated,
        attention=attention,
        layers=translated.num_hidden_layers,
        width=translated.hidden_size,
        vocabulary=translated.vocab_size,
        experts=cast("Any", translated).n_routed_experts,
        layer_prefix=names.layer,
        attention_module=names.attention,
        embedding=names.embedding,
        norm=names.norm,
        head=names.embedding if translated.tie_word_embeddings else names.head,
    )


class DeepseekV3(TextModel):
    """A DeepSeek-V3 text model."""

    def decoder_layer(
        self, index: int, tensors: Tensors, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
    ) -> DeepseekV3Layer:
        """Build a layer from tensors by name."""
        return DeepseekV3Layer(self, index, tensors, dtype, device)

    def rotary(self) -> nn.Module:
        """Return the module that computes RoPE's cos and sin."""
        return DeepseekV3RotaryEmbedding(self.config)

    def final_norm(self) -> nn.Module:
        """Return the norm before the head, without its weight."""
        return DeepseekV3RMSNorm(self.width, eps=self.config.rms_norm_eps)

    def comparable(self) -> Mapping[str, Any]:
        """Return the settings that two models must share for their hidden states to be comparable."""
        return {key: getattr(self.config, key) for key in _COMPARABLE}

    def whole_model(self) -> Any:
        """Return transformers' whole model on the meta device."""
        self.config._experts_implementation = "eager"  # the fastest on a CPU
        with torch.device("meta"):
            return DeepseekV3ForCausalLM(self.config)

    def fill(self, model: Any, tensors: Tensors, experts: Callable[[int], Expert]) -> None:
        """Load the decoded weights into a whole model, in FP32; transformers stacks the routed experts."""
        outside = {
            "model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm, "lm_head.weight": self.head,
        }  # fmt: skip

        def tensor(name: str) -> torch.Tensor:
            if name in outside:
                return fetch(tensors, outside[name])
            _, _, layer, inside = name.split(".", 3)  # model.layers.3.x
            if not inside.startswith("mlp.experts."):
                return fetch(tensors, self.layer(int(layer)) + inside)
            expert = experts(int(layer))
            if inside.endswith("down_proj"):
                return torch.stack([expert(number)[2] for number in range(self.experts)])
            return torch.stack([torch.cat(expert(number)[:2]) for number in range(self.experts)])

        load_into(model, "", tensor, torch.float32, "cpu", _ALWAYS_F32)
        model.model.rotary_emb = self.rotary()  # its buffers are computed, not stored

    def cache(self, model: Any) -> DynamicCache:
        """Return a KV cache with which a whole model generates."""
        return _ExpandedCache(model)


class DeepseekV3Layer:
    """A decoder layer without its routed experts."""

    def __init__(self, model: TextModel, index: int, tensors: Tensors, dtype: torch.dtype, device: str) -> None:
        if index not in range(model.layers):  # multi-token prediction layers follow the last one
            raise UsageError(f"no layer {index}", fix=f"choose a layer from 0 to {model.layers - 1}")
        self.index, self.is_moe = index, index >= (model.config.first_k_dense_replace or 0)
        with torch.device("meta"):  # shapes only: the experts alone would take gigabytes
            self._layer: Any = DeepseekV3DecoderLayer(model.config, index)
        if self.is_moe:
            del self._layer.mlp.experts
        load_into(self._layer, model.layer(index), tensors, dtype, device, _ALWAYS_F32)
        self._hooks = _Hooks(self._layer, model.attention_module)

    @torch.no_grad()
    def attention_part(self, h: torch.Tensor, inputs: AttentionInputs, hook: Hook | None = None) -> torch.Tensor:
        """Return hidden states [R, L, D] after attention."""
        with self._hooks.use(hook):
            attended, _ = self._layer.self_attn(
                hidden_states=self._layer.input_layernorm(h),
                position_embeddings=(inputs.cos, inputs.sin),
                attention_mask=inputs.mask,
                past_key_values=self._hooks if hook else None,
            )
        return h + attended

    @torch.no_grad()
    def mlp(self, h: torch.Tensor, hook: Hook | None = None) -> torch.Tensor:
        """Return hidden states after the MLP of a dense layer."""
        with self._hooks.use(hook):
            return h + self._layer.mlp(self._layer.post_attention_layernorm(h))

    @torch.no_grad()
    def before_experts(self, h: torch.Tensor) -> Routed:
        """Return the inputs and routing of the experts of a MoE layer."""
        x = self._layer.post_attention_layernorm(h).view(-1, h.shape[-1])
        logits, weights, indices = self._layer.mlp.gate(x)
        return Routed(x, indices, weights, logits)

    @torch.no_grad()
    def after_experts(
        self, h: torch.Tensor, x: torch.Tensor, routed: torch.Tensor, hook: Hook | None = None
    ) -> torch.Tensor:
        """Return hidden states after a MoE layer, given the sum of its routed experts."""
        with self._hooks.use(hook):
            return h + (routed.view_as(h) + self._layer.mlp.shared_experts(x.view_as(h)))


class _Hooks(LinearHooks):
    """Call a hook also on the expanded keys and values, and, as the cache of attention, on what MLA caches."""

    def __init__(self, layer: Any, attention_module: str) -> None:
        super().__init__(layer)
        self._at = attention_module
        # A weak reference, because a cycle would keep the weights until the next garbage collection.
        attention = weakref.ref(layer.self_attn)
        expand = cast("Any", type(layer.self_attn)).expand_kv

        def expand_kv(latent: torch.Tensor, k_rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = cast("tuple[torch.Tensor, torch.Tensor]", expand(attention(), latent, k_rope))
            return self.seen(f"{self._at}.k", k), self.seen(f"{self._at}.v", v)

        layer.self_attn.expand_kv = expand_kv

    def update(self, latent: torch.Tensor, k_rope: torch.Tensor, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Replace the cache update of transformers."""
        return self.seen(f"{self._at}.latent", latent), self.seen(f"{self._at}.k_rope", k_rope)


class _ExpandedCache(DynamicCache):
    """Cache of expanded keys and values; transformers caches latents and expands all of them at every step."""

    def __init__(self, model: Any) -> None:
        super().__init__(config=model.config)
        for layer in model.model.layers:
            layer.self_attn.expand_kv = partial(self._expanded, layer.self_attn)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Return the latents of new tokens unchanged; `_expanded` caches the expanded ones."""
        return key_states, value_states

    def _expanded(self, attention: Any, latent: torch.Tensor, k_rope: torch.Tensor) -> Any:
        expand = cast("Any", type(attention)).expand_kv
        keys, values = cast("tuple[torch.Tensor, torch.Tensor]", expand(attention, latent, k_rope))
        return super().update(keys, values, attention.layer_idx)


def _check(text: Mapping[str, Any]) -> None:
    missing = [key for key in _REQUIRED if key not in text]
    if not {"rope_theta", "rope_parameters"} & text.keys():
        missing.append("rope_theta")
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise CheckpointError(f"config.json has no {missing[0]}{more}", where="config.json", fix="download it again")
    for key, value in _FIXED.items():
        if text.get(key, value) != value:
            what = f"unsupported {key} = {text[key]!r}, only {value!r} is supported"
            raise CheckpointError(what, where="config.json", fix=_SUPPORTED)


def _translate(text: Mapping[str, Any], attention: str) -> DeepseekV3Config:
    known = {key: value for key, value in text.items() if key in (*_FIELDS, *_OLD_ROPE) and key not in _UNREAD}
    if isinstance(known.get("rope_parameters"), Mapping):
        known = {key: value for key, value in known.items() if key != "rope_scaling"}
    try:
        config = DeepseekV3Config(**_copied(known))
        config._attn_implementation = attention  # pyright: ignore[reportPrivateUsage] - no public API
    except (StrictDataclassError, KeyError, TypeError, ValueError) as error:
        what = f"transformers rejects config.json: {' '.join(str(error).split())}"
        raise CheckpointError(what, where="config.json", fix="download it again") from None
    kind = cast("dict[str, Any]", config.rope_parameters or {}).get("rope_type")
    if kind not in _ROPES:
        what = f"unsupported rope type '{kind}'"
        raise CheckpointError(what, where="config.json", fix=_SUPPORTED)
    return config


def _copied(known: Mapping[str, Any]) -> dict[str, Any]:
    """Copy nested dictionaries, because transformers modifies them."""
    return {key: dict(cast("Mapping[str, Any]", v)) if isinstance(v, Mapping) else v for key, v in known.items()}
