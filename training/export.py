"""From trained weights to a checkpoint in the layout of Kimi-K2.6's release.

    python -m training.export FOLDER        FOLDER holds the weights-NN.safetensors of a training run

Names, shapes, dtypes and shards come from halfbyte's own description of the release, the INT4 bytes from halfbyte's own
codec. Nothing here decides a number.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from halfbyte.checkpoint.headers import TensorSpec
from halfbyte.families.kimi_k25.geometry import Geometry, release_shards
from halfbyte.formats.codec import encode
from training import config, pieces
from training.shape import MINI
from training.tokenizer import FOLDER

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
VISION_SEED = 26
SMALL_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
EXPERT = re.compile(r"(?P<layer>.*)\.mlp\.experts\.(?P<expert>\d+)\.(?P<which>\w+)\.(?P<suffix>weight_\w+)")


class Source:
    """Gives the tensor of any name in the release."""

    def __init__(self, state: Mapping[str, Tensor], geometry: Geometry, vision: Mapping[str, Tensor]) -> None:
        self.state, self.geometry, self.vision = state, geometry, vision
        self.random = torch.Generator().manual_seed(VISION_SEED)
        self.encoded: dict[tuple[str, str, str], dict[str, Tensor]] = {}

    def tensor(self, spec: TensorSpec) -> Tensor:
        """Return one tensor of the release."""
        if spec.name.startswith(("vision_tower.", "mm_projector.")):
            return self.vision[spec.name] if spec.name in self.vision else self.untrained(spec)
        name = spec.name.removeprefix(self.geometry.prefix).removeprefix("model.")
        match = EXPERT.fullmatch(name)
        if match:
            return self.expert(match["layer"], match["expert"], match["which"])[match["suffix"]]
        if name in ("embed_tokens.weight", "lm_head.weight"):
            name = name.removesuffix(".weight")
        return self.state[name].to(DTYPES[spec.dtype])

    def expert(self, layer: str, expert: str, which: str) -> dict[str, Tensor]:
        """Return the three tensors of one INT4 linear."""
        key = (layer, expert, which)
        if key not in self.encoded:
            weights = self.state[f"{layer}.mlp.experts.{which}"][int(expert)].to(torch.bfloat16).contiguous()
            bits = weights.view(torch.int16).numpy().view("uint16")
            self.encoded[key] = encode(bits, "int4", method="kimi", name=".".join(key)).to_torch()
        return self.encoded[key]

    def untrained(self, spec: TensorSpec) -> Tensor:
        """Return a random tensor for the vision tower, which no text has trained."""
        if "norm" in spec.name:
            plain = torch.ones(spec.shape) if spec.name.endswith("weight") else torch.zeros(spec.shape)
        elif spec.name.endswith("bias"):
            plain = torch.zeros(spec.shape)
        else:
            plain = torch.randn(spec.shape, generator=self.random) * 0.02
        return plain.to(torch.bfloat16)


def write_weights(
    state: Mapping[str, Tensor],
    folder: Path,
    geometry: Geometry = MINI,
    vision: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the shards and their index."""
    source = Source(state, geometry, vision or {})
    folder.mkdir(parents=True, exist_ok=True)
    weight_map: dict[str, str] = {}
    total = 0
    for shard, specs in release_shards(geometry).items():
        tensors = {spec.name: source.tensor(spec).contiguous() for spec in specs}
        for spec in specs:
            if tuple(tensors[spec.name].shape) != spec.shape:
                raise AssertionError(f"{spec.name} has {tuple(tensors[spec.name].shape)}, the release {spec.shape}")
        (folder / shard).write_bytes(save(tensors))  # save_file would hide it from others: mode 0600
        weight_map |= dict.fromkeys(tensors, shard)
        total += sum(spec.nbytes for spec in specs)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=0, separators=(",", ":")))


def write_checkpoint(
    state: Mapping[str, Tensor],
    folder: Path,
    geometry: Geometry = MINI,
    vision: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a whole checkpoint: weights, configs, and copies of the tokenizer and the chat template."""
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    write_weights(state, folder, geometry, vision)
    config.write(folder, geometry)
    for name in SMALL_FILES:
        if folder.resolve() != FOLDER.resolve():
            shutil.copyfile(FOLDER / name, folder / name)


def main() -> None:
    """Export a training run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("weights", type=Path, help="the folder with weights-NN.safetensors")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--vision", type=Path, help="a safetensors file with a trained vision tower and projector")
    arguments = parser.parse_args()
    vision = load_file(arguments.vision) if arguments.vision else None
    write_checkpoint(pieces.load(arguments.weights), arguments.folder, vision=vision)


if __name__ == "__main__":
    main()
