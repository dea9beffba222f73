"""Routing of all tokens of a layer, collected chunk by chunk from any number of threads."""

from __future__ import annotations

import torch

from halfbyte.forward.experts import turns


class Routing:
    """The top-k experts of each token and their weights."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tell(self, chunk: slice, indices: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the routing of a chunk of rows, both [T, k]."""
        self._parts[chunk.start] = indices, weights

    def by_expert(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Return the tokens and weights of every expert with tokens, in execution order."""
        if not self._parts:
            return {}
        indices, weights = zip(*(part for _, part in sorted(self._parts.items())), strict=True)
        return {turn.expert: (turn.tokens, turn.weights) for turn in turns(torch.cat(indices), torch.cat(weights))}
