"""Translate config.json into transformers' DeepSeek-V3 configuration, the only supported architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from huggingface_hub.errors import StrictDataclassError
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.machine.library_settings import limit_onednn

ATTENTIONS = ("sdpa", "eager")
_TEXT_TYPES = ("deepseek_v3", "kimi_k2")  # the Kimi-K2 architecture is DeepSeek-V3
_WRAPPERS = {"kimi_k25": "language_model."}  # multimodal models and the name prefix of their text model
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


@dataclass(frozen=True, slots=True)
class TextModel:
    """A text model's config and the prefix of its tensor names ("language_model." or empty)."""

    config: DeepseekV3Config
    prefix: str
    attention: str  # one of ATTENTIONS

    def layer(self, index: int) -> str:
        """Return the name prefix of a layer's tensors."""
        return f"{self.prefix}model.layers.{index}."


def text_model(config: Mapping[str, Any], attention: str = "sdpa") -> TextModel:
    """Return the text model of a config.json; raise CheckpointError if it is not supported."""
    limit_onednn()
    if attention not in ATTENTIONS:
        raise UsageError(f"unknown attention '{attention}'", fix=f"choose one of {', '.join(ATTENTIONS)}")
    kind = config.get("model_type")
    prefix = _WRAPPERS.get(str(kind), "")
    text: Any = config.get("text_config") if prefix else config
    if not isinstance(text, Mapping):
        raise CheckpointError("config.json has no text_config", where="config.json", fix="download it again")
    text = cast("Mapping[str, Any]", text)
    if text.get("model_type", "deepseek_v3" if prefix else None) not in _TEXT_TYPES:
        what = f"unsupported model_type '{text.get('model_type')}'"
        raise CheckpointError(what, where="config.json", fix=_SUPPORTED)
    _check(text)
    return TextModel(_translate(text, attention), prefix, attention)


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
