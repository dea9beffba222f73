"""What a draft model adds: an Eagle3 head is one layer that guesses tokens, which the model itself then checks.

vLLM splits it like the model, but for `fc`, which joins three hidden states and is whole on each GPU as MLA's
down-projections are. The embedding is the model's own. The published MLA drafts for Kimi have an attention of the
model's shape over two states (an embedding beside a hidden state), a dense MLP of its dense width, and an output head.
That geometry can be checked: a build of the draft in FP8 leaves 6,752 tokens more on each of 8 GPUs, 241 MB; half of
what it says the linears take is 245 MB.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from halfbyte.source.checkpoint import open_checkpoint
from halfbyte.source.geometry import KIMI_K26, Geometry

_BF16 = 2
_STATES = 3  # hidden states that fc joins
_WHOLE = ("fc", "q_a_proj", "kv_a_proj_with_mqa")
_SHARED = "embed_tokens"


@dataclass(frozen=True, slots=True)
class Draft:
    """Bytes of a draft without its embedding, those of them that every GPU holds, and its layers with a KV cache."""

    nbytes: int
    whole_nbytes: int = 0
    layers: int = 1
    tokens: int = 3  # guessed at once


def eagle3_mla(geometry: Geometry = KIMI_K26) -> Draft:
    """Return the draft that fits a model of this geometry, as the published ones for Kimi are built."""
    g = geometry
    latent = (g.q_rank + g.kv_rank + g.rope_width) * 2 * g.width
    queries = g.heads * (g.nope_width + g.rope_width) * g.q_rank
    expanded = g.heads * (g.nope_width + g.value_width) * g.kv_rank
    split = queries + expanded + g.width * g.heads * g.value_width + 3 * g.width * g.dense_width
    whole = latent + _STATES * g.width * g.width
    return Draft(nbytes=(split + whole + g.vocabulary * g.width) * _BF16, whole_nbytes=whole * _BF16)


def draft_of(folder: Path, tokens: int = 3) -> Draft:
    """Return what the draft in a folder takes, from its headers."""
    checkpoint = open_checkpoint(folder)
    nbytes: Counter[bool] = Counter()
    for name, tensor in checkpoint.tensors.items():
        parts = name.split(".")
        if _SHARED not in parts:
            nbytes[any(part in _WHOLE for part in parts)] += tensor.nbytes
    layers = checkpoint.config.get("num_hidden_layers")
    return Draft(nbytes.total(), nbytes[True], layers if type(layers) is int else 1, tokens)
