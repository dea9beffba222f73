"""How all tokens of a layer are routed, told chunk by chunk by any number of threads."""

from __future__ import annotations

import torch

from halfbyte.forward.experts import turns


class Routing:
    """Which k experts each token goes to, and some weight of each choice."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tell(self, chunk: slice, indices: torch.Tensor, weights: torch.Tensor) -> None:
        """Take the routing of a chunk of rows, both [T, k]."""
        self._parts[chunk.start] = indices, weights

    def by_expert(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Return tokens and weights of every expert that has some, in the order in which experts are run on them."""
        if not self._parts:
            return {}
        indices, weights = zip(*(part for _, part in sorted(self._parts.items())), strict=True)
        return {turn.expert: (turn.tokens, turn.weights) for turn in turns(torch.cat(indices), torch.cat(weights))}
