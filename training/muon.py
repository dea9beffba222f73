"""Muon, the optimizer that Kimi-K2 was trained with: every matrix moves by an orthogonal step of its momentum.

Matrices of one shape, and all experts, are orthogonalized together in one batch. Everything that is no hidden matrix
(embedding, head, router, norms) is AdamW's. The step has the root mean square of an AdamW step (0.2), so both share
one learning rate and its schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

STEP_RMS = 0.2
ROUTER_SHARE = 0.25  # of the learning rate: who is sent where should change slowly
COEFFICIENTS = (  # five steps of a quintic iteration, each with the coefficients that converge fastest from there
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return roughly the nearest (semi-)orthogonal matrix of each [B, N, K]: singular values end near 1."""
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices  # not every CPU multiplies BF16
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon:
    """Momentum and orthogonal steps for matrices [N, K] and stacks of them [E, N, K]."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, momentum: float = 0.95, decay: float = 0.1) -> None:
        self.momentum, self.decay = momentum, decay
        self.by_shape: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            self.by_shape[(parameter.shape[-2], parameter.shape[-1])].append(parameter)
        self.velocity = {
            shape: torch.zeros(sum(p.numel() for p in found) // (shape[0] * shape[1]), *shape, device=found[0].device)
            for shape, found in self.by_shape.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every matrix."""
        for shape, parameters in self.by_shape.items():
            grads = torch.cat([_grad(parameter).view(-1, *shape) for parameter in parameters])
            velocity = self.velocity[shape]
            velocity.lerp_(grads, 1 - self.momentum)
            ahead = grads.lerp_(velocity, self.momentum)  # Nesterov
            steps = orthogonal(ahead).float().mul_(-rate * STEP_RMS * max(shape) ** 0.5)
            at = 0
            for parameter in parameters:
                count = parameter.numel() // (shape[0] * shape[1])
                parameter.mul_(1 - rate * self.decay)
                parameter.add_(steps[at : at + count].view_as(parameter))
                at += count


def _grad(parameter: nn.Parameter) -> Tensor:
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


class Optimizer:
    """Muon for the hidden matrices, AdamW for the rest (or for everything: `muon=False`)."""

    def __init__(self, model: nn.Module, *, muon: bool = True, decay: float = 0.1) -> None:
        hidden: list[nn.Parameter] = []
        routers: list[nn.Parameter] = []
        vectors: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                vectors.append(parameter)
            elif ".gate.weight" in name:
                routers.append(parameter)
            elif muon and not name.startswith(("embed_tokens", "lm_head")):
                hidden.append(parameter)
            else:
                others.append(parameter)
        self.muon = Muon(hidden, decay=decay)
        groups = [
            {"params": others, "weight_decay": decay, "share": 1.0},
            {"params": vectors, "weight_decay": 0.0, "share": 1.0},
            {"params": routers, "weight_decay": 0.0, "share": ROUTER_SHARE},
        ]
        fused = next(model.parameters()).is_cuda
        self.adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-10, fused=fused)

    def forget(self) -> None:
        """Forget what earlier gradients left behind."""
        self.adamw.state.clear()
        for velocity in self.muon.velocity.values():
            velocity.zero_()

    def step(self, rate: float) -> None:
        """Move everything."""
        for group in self.adamw.param_groups:
            group["lr"] = rate * group["share"]
        self.adamw.step()
        self.muon.step(rate)
