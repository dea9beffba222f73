"""What the public REAP code takes for a router's weights: a softmax, whatever the model itself does.

Softmax over the logits of all experts in FP32, divided by its sum over the chosen ones, and never below FP32's epsilon.
Kimi's own weights come from sigmoids and are much flatter.
"""

from __future__ import annotations

import torch

SMALLEST = torch.finfo(torch.float32).eps


def softmax_weights(logits: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the weights [T, k] of the chosen experts, FP32, from the logits of all experts [T, E]."""
    chosen = torch.softmax(logits.float(), dim=1).gather(1, indices)
    return (chosen / chosen.sum(dim=1, keepdim=True)).clamp(min=SMALLEST)
