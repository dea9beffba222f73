"""Router weights of the public REAP code, which always uses a softmax.

It is the FP32 softmax over the logits of all experts, normalized over the chosen ones and clamped to FP32's epsilon.
Kimi's own weights come from sigmoids and are much flatter.
"""

from __future__ import annotations

import torch

SMALLEST = torch.finfo(torch.float32).eps


def softmax_weights(logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the weights [T, k] of the chosen experts, FP32, from the logits of all experts [T, E]."""
    chosen = torch.softmax(logits.float(), dim=1).gather(1, indices)
    return (chosen / chosen.sum(dim=1, keepdim=True)).clamp(min=SMALLEST)
