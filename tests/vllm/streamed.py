"""The numbers of an emulated engine, computed by `halfbyte compare`: complete forward passes, and single modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from halfbyte.calibrate.token_rows import Rows
from halfbyte.compare.models import open_side
from halfbyte.compare.stream import _head, _Run
from halfbyte.forward.experts import run_experts

LIKELY = -20  # nats; below, a log-probability is one of 1e-9


def log_probabilities(folder: Path, tokens: list[int], activations: str = "off") -> torch.Tensor:
    """Log-probabilities [L - 1, V] after each token but the last, in FP32."""
    with open_side(folder, activations=activations) as side:
        run = _Run(_rows(tokens), [side], None, 1)
        hidden = run._hidden[0]
        with run.layers:
            for index in range(side.model.config.num_hidden_layers):
                run._advance(side, hidden, index)
        logits = _head(side).logits(hidden[0], precise=True)
    return logits[:-1].double().log_softmax(-1)


def _rows(tokens: list[int]) -> Rows:
    row = np.array([tokens], np.int32)
    return Rows(
        tokens=row,
        real=np.ones_like(row, bool),
        positions=np.arange(len(tokens), dtype=np.int32)[None],
        documents=np.zeros_like(row),
        domains=np.zeros_like(row, np.int16),
        names=("one",),
        left_padded=False,
    )


def experts_again(folder: Path, layer: int, call: dict[str, torch.Tensor], activations: str) -> torch.Tensor:
    """The outputs of a layer's routed experts for an engine's inputs."""
    with open_side(folder, activations=activations) as side:
        change = side.change(layer) if side.change else None
        indices = call["topk_ids"].long()
        return run_experts(call["x"], indices, call["topk_weights"], side.experts(layer), change=change)


def linear_again(folder: Path, names: list[str], call: dict[str, torch.Tensor], activations: str) -> torch.Tensor:
    """The outputs of linears outside the experts for an engine's inputs."""
    with open_side(folder, activations=activations) as side:
        prefix, leaf = names[0].split(".mlp.")
        layer = int(prefix.rpartition(".")[2])
        hook = side.hook(layer) if side.hook else None
        x = hook(f"mlp.{leaf}", call["x"]) if hook else call["x"]
        return torch.cat([torch.nn.functional.linear(x, side.tensors(f"{name}.weight").float()) for name in names], -1)


def apart(first: torch.Tensor, second: torch.Tensor) -> tuple[float, float]:
    """The largest difference between relevant log-probabilities, and the mean KL of the second from the first."""
    return float(by_position(first, second).max()), float((first.exp() * (first - second)).sum(-1).mean())


def by_position(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The largest difference at each position."""
    return (first - second).abs().masked_fill(first <= LIKELY, 0).amax(-1)
