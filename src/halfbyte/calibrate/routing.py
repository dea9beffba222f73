"""Routing of all tokens of a layer, and the router weights of the public REAP code."""

from __future__ import annotations

import torch

from halfbyte.forward.experts import turns

SMALLEST = torch.finfo(torch.float32).eps


class Routing:
    """The top-k experts of each token and their weights, collected chunk by chunk from any number of threads."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, chunk: slice, indices: torch.Tensor, weights: torch.Tensor) -> None:
        """Add the routing of a chunk of rows, both [T, k]."""
        self._parts[chunk.start] = indices, weights

    def by_expert(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Return the tokens and weights of every expert with tokens, in execution order."""
        if not self._parts:
            return {}
        indices, weights = zip(*(part for _, part in sorted(self._parts.items())), strict=True)
        return {turn.expert: (turn.tokens, turn.weights) for turn in turns(torch.cat(indices), torch.cat(weights))}


def softmax_weights(logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the weights [T, k] of the chosen experts, FP32, from the logits of all experts [T, E].

    The public REAP code always uses a softmax: the FP32 softmax over the logits of all experts, normalized over the
    chosen ones and clamped to FP32's epsilon. Kimi's own weights come from sigmoids and are much flatter.
    """
    chosen = torch.softmax(logits.float(), dim=1).gather(1, indices)
    return (chosen / chosen.sum(dim=1, keepdim=True)).clamp(min=SMALLEST)
