"""Weights in files small enough to travel: BF16 under the training model's own names, at most 15 MiB each."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

PIECE_NBYTES = 15 << 20
PATTERN = "weights-{:02d}.safetensors"


def save(state: dict[str, Tensor], folder: Path) -> list[Path]:
    """Write a state dict as pieces; the router's bias stays FP32."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in state.items():
        keep = name.endswith("e_score_correction_bias")
        kept = tensor.detach().to("cpu", torch.float32 if keep else torch.bfloat16).contiguous()
        if filled + kept.nbytes > PIECE_NBYTES:
            pieces.append({})
            filled = 0
        pieces[-1][name] = kept
        filled += kept.nbytes
    paths = [folder / PATTERN.format(number) for number in range(len(pieces))]
    for path, piece in zip(paths, pieces, strict=True):
        save_file(piece, path)
    return paths


def load(folder: Path) -> dict[str, Tensor]:
    """Read what `save` wrote, as FP32."""
    paths = sorted(folder.glob(PATTERN.replace("{:02d}", "*")))
    if not paths:
        raise FileNotFoundError(f"no {PATTERN.replace('{:02d}', 'NN')} in {folder}")
    found: dict[str, Tensor] = {}
    for path in paths:
        found |= {name: tensor.float() for name, tensor in load_file(path).items()}
    return found
