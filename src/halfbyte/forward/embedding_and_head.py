"""Embedding lookup before the first layer, and the final norm and head after the last."""

from __future__ import annotations

import torch
from torch.nn import functional

from halfbyte.forward.model import Tensors, TextModel, fetch

_WORDS = 8192  # rows of the head converted to FP32 at a time


def embed(tokens: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the input [R, L, D] of the first layer; only the used rows are converted."""
    return functional.embedding(tokens, weight).to(dtype)


class Head:
    """The final norm and the head."""

    def __init__(
        self, model: TextModel, tensors: Tensors, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
    ) -> None:
        self._norm = model.final_norm()
        norm = fetch(tensors, model.norm).to(device, dtype)
        self._norm.load_state_dict({"weight": norm}, assign=True)
        self._words = fetch(tensors, model.head).to(device, dtype)

    @torch.no_grad()
    def logits(self, h: torch.Tensor, *, precise: bool = False) -> torch.Tensor:
        """Return FP32 logits [T, V] of hidden states [T, D].

        As in transformers, they are computed in the model's dtype and then converted, unless `precise` is set.
        """
        normed = self._norm(h)
        if not precise:
            return functional.linear(normed, self._words).float()
        blocks = (self._words[start : start + _WORDS] for start in range(0, len(self._words), _WORDS))
        return torch.cat([functional.linear(normed.float(), block.float()) for block in blocks], dim=-1)
