"""Which experts each domain uses: shares of tokens by layer and expert.

python -m training.routing models/kimi-mini          prints, per domain, its favourite experts and how far from even
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch

from training import mixture, pieces
from training.corpus import Encoder
from training.model import Documents, Mini

TOKENS = 32_768


@torch.no_grad()
def shares(model: Mini, tokens: int = TOKENS, seed: int = 1) -> dict[str, list[list[float]]]:
    """Return, for each domain, the share of its routes that each expert gets: [MoE layer][expert]."""
    found: dict[str, list[list[float]]] = {}
    encoder = Encoder()
    for name, module in mixture.modules().items():
        rng = random.Random(seed)
        ids: list[int] = []
        starts = [0]
        while len(ids) < tokens:
            ids += encoder.encode(module.train_sample(rng))[0]
            starts.append(len(ids))
        device = model.embed_tokens.device
        documents = Documents.of(torch.tensor(starts, dtype=torch.int32), device)
        _, routes = model(torch.tensor(ids, device=device), documents)
        found[name] = [(layer.load / layer.load.sum()).tolist() for layer in routes]
    return found


def difference(first: list[float], second: list[float]) -> float:
    """Return how different two ways of using the experts are: 0 the same, 1 no expert in common."""
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / 2


def summary(found: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Return, for each domain: its busiest experts by layer, and the mean difference from the other domains."""
    result: dict[str, Any] = {}
    for name, layers in found.items():
        others = [other for other in found if other != name]
        distances = [difference(a, b) for other in others for a, b in zip(layers, found[other], strict=True)]
        busiest = [sorted(range(len(layer)), key=lambda e, row=layer: -row[e])[:4] for layer in layers]
        experts_used = [math.exp(-sum(p * math.log(p) for p in layer if p > 0)) for layer in layers]
        result[name] = {
            "busiest": busiest,
            "experts_used": [round(number, 1) for number in experts_used],
            "difference": round(sum(distances) / max(len(distances), 1), 3),
        }
    return result


def main() -> None:
    """Print the routing of a checkpoint or of a training run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=TOKENS // 8)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)  # before any work
    model = Mini(dtype=torch.float32)
    if (arguments.folder / "config.json").exists():
        from training import restore  # noqa: PLC0415 - a training run has no use for halfbyte's codecs

        model.load_state_dict(restore.state(arguments.folder))
    else:
        model.load_state_dict(pieces.load(arguments.folder))
    found = shares(model, arguments.tokens)
    for name, row in summary(found).items():
        print(f"{name:18} {row['difference']:.3f}  uses {row['experts_used']}  busiest {row['busiest']}")
    if arguments.out:
        arguments.out.write_text(json.dumps({"shares": found, "summary": summary(found)}))


if __name__ == "__main__":
    main()
