"""A model of two small layers with weights as large as trained ones, and its checkpoint, for tests."""

import torch
from training import export
from training.model import Mini
from training.shape import TOY


def toy_model(seed: int = 0) -> Mini:
    """Random weights, large enough that routing is clear and every missing part is noticeable."""
    torch.manual_seed(seed)
    model = Mini(TOY, dtype=torch.float32)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.ndim > 1:
                weights.mul_(40 if name.endswith("gate.weight") else 6)
            else:
                weights.add_(torch.randn_like(weights) * 0.1)  # norms
        for layer in model.layers:
            if not layer.is_dense:
                layer.mlp.gate.e_score_correction_bias.normal_(std=0.3)
    return model


def toy_checkpoint(folder, seed: int = 0):
    """Write a toy model in the release's layout; return the folder."""
    export.write_checkpoint(toy_model(seed).state_dict(), folder, TOY)
    return folder
