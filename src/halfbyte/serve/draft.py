"""Memory of a draft model: an Eagle3 draft is one layer that proposes tokens for the target model to verify.

vLLM shards it like the target, except for `fc`, which joins three hidden states and is replicated like MLA's
down-projections. The embedding is shared with the target. The published MLA drafts for Kimi have the target's attention
over two states (an embedding and a hidden state), a dense MLP of the target's dense width, and an output head. As a
check of this geometry: an FP8 version of the draft leaves room for 6,752 more tokens (241 MB) on each of 8 GPUs, and
half the computed size of the linears is 245 MB.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.families.kimi_k25.geometry import KIMI_K26, Geometry

_BF16 = 2
_STATES = 3  # hidden states that fc joins
_WHOLE = ("fc", "q_a_proj", "kv_a_proj_with_mqa")
_SHARED = "embed_tokens"


@dataclass(frozen=True, slots=True)
class Draft:
    """Bytes of a draft without its embedding, the replicated bytes, and its layers with a KV cache."""

    nbytes: int
    whole_nbytes: int = 0
    layers: int = 1
    tokens: int = 3  # proposed per step


def eagle3_mla(geometry: Geometry = KIMI_K26) -> Draft:
    """Return an Eagle3 MLA draft for a model of this geometry, built like the published ones for Kimi."""
    g = geometry
    latent = (g.q_rank + g.kv_rank + g.rope_width) * 2 * g.width
    queries = g.heads * (g.nope_width + g.rope_width) * g.q_rank
    expanded = g.heads * (g.nope_width + g.value_width) * g.kv_rank
    split = queries + expanded + g.width * g.heads * g.value_width + 3 * g.width * g.dense_width
    whole = latent + _STATES * g.width * g.width
    return Draft(nbytes=(split + whole + g.vocabulary * g.width) * _BF16, whole_nbytes=whole * _BF16)


def draft_of(folder: Path, tokens: int = 3) -> Draft:
    """Return the size of the draft in a folder, from its headers."""
    checkpoint = open_checkpoint(folder)
    nbytes: Counter[bool] = Counter()
    for name, tensor in checkpoint.tensors.items():
        parts = name.split(".")
        if _SHARED not in parts:
            nbytes[any(part in _WHOLE for part in parts)] += tensor.nbytes
    layers = checkpoint.config.get("num_hidden_layers")
    return Draft(nbytes.total(), nbytes[True], layers if type(layers) is int else 1, tokens)
