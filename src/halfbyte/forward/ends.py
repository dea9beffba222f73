"""What lies before the first layer and after the last: rows of the embedding, the final norm and the head."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

from halfbyte.forward.config import TextModel
from halfbyte.forward.layer import Tensors, fetch

TOKENS = 512  # logits of one chunk: 335 MB in FP32 with Kimi's vocabulary
_WORDS = 8192  # rows of the head that are FP32 at a time


def embed(tokens: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the hidden states [R, L, D] that the first layer is given; only the rows in use are converted."""
    return functional.embedding(tokens, weight).to(dtype)


class Head:
    """The final norm and the head."""

    def __init__(
        self, model: TextModel, tensors: Tensors, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
    ) -> None:
        config = model.config
        words = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        self._norm = DeepseekV3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        norm = fetch(tensors, f"{model.prefix}model.norm.weight").to(device, dtype)
        self._norm.load_state_dict({"weight": norm}, assign=True)
        self._words = fetch(tensors, model.prefix + words).to(device, dtype)

    @torch.no_grad()
    def logits(self, h: torch.Tensor, *, precise: bool = False) -> torch.Tensor:
        """Return FP32 logits [T, V] of hidden states [T, D].

        They are transformers' own, in the model's dtype and then converted; `precise` ones are never rounded to it.
        """
        normed = self._norm(h)
        if not precise:
            return functional.linear(normed, self._words).float()
        blocks = (self._words[start : start + _WORDS] for start in range(0, len(self._words), _WORDS))
        return torch.cat([functional.linear(normed.float(), block.float()) for block in blocks], dim=-1)

    def in_chunks(self, h: torch.Tensor, *, precise: bool = False) -> Iterator[torch.Tensor]:
        """Yield the logits of [T, D] hidden states in chunks of tokens."""
        for start in range(0, len(h), TOKENS):
            yield self.logits(h[start : start + TOKENS], precise=precise)
