"""The same model with its routed experts stored in other ways, or with fewer of them.

Each variant is a state dict of the training model. The numbers come from halfbyte's own codec, and a test holds them to
what `halfbyte quantize` writes. Activations stay as they are (W4A16): only what the weights lose is seen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from halfbyte.formats.codec import amax, decode, encode
from halfbyte.formats.encoded import BF16Bits, array_to_torch
from training import pieces, restore

State = dict[str, Tensor]

EXPERTS = re.compile(r"(layers\.\d+\.mlp)\.experts\.gate_proj")
LINEARS = ("gate_proj", "up_proj", "down_proj")
PRUNE_SEED = 25


def as_released(folder: Path) -> State:
    """Return a checkpoint's weights, or those of a training run with experts as INT4 will store them; FP32."""
    if (folder / "config.json").exists():
        return restore.state(folder)
    return recoded(pieces.load(folder), "int4", "kimi")


def moe_layers(state: State) -> list[str]:
    """Return the names of the MoE blocks."""
    return [match[1] for match in map(EXPERTS.fullmatch, state) if match]


def recoded(state: State, format: str, method: str) -> State:
    """Return the weights after every routed expert went through a number format and back."""
    found = dict(state)
    for layer in moe_layers(state):
        stacks = {which: state[f"{layer}.experts.{which}"] for which in LINEARS}
        experts = [
            _expert({which: _bits(stack[number]) for which, stack in stacks.items()}, format, method)
            for number in range(len(stacks["gate_proj"]))
        ]
        for which in LINEARS:
            found[f"{layer}.experts.{which}"] = torch.stack([expert[which] for expert in experts])
    return found


def _expert(linears: dict[str, BF16Bits], format: str, method: str) -> State:
    """Pass one expert through a format; where it has a tensor scale, gate and up share theirs, as engines fuse them."""
    fused: dict[str, float | None] = dict.fromkeys(LINEARS)
    if format.startswith("nvfp4"):
        shared = max(amax(linears["gate_proj"]), amax(linears["up_proj"]))
        fused |= {"gate_proj": shared, "up_proj": shared}
    return {
        which: array_to_torch(decode(encode(bits, format, method=method, amax=fused[which])), "BF16").float()
        for which, bits in linears.items()
    }


def _bits(weight: Tensor) -> BF16Bits:
    return weight.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view("uint16")


def pruned(state: State, share: float, seed: int = PRUNE_SEED) -> State:
    """Return the weights without a random share of every layer's experts: their weights, router rows and biases."""
    rng = random.Random(seed)
    kept: dict[int, list[int]] = {}
    for layer in moe_layers(state):
        count = len(state[f"{layer}.gate.weight"])
        kept[number_of(layer)] = sorted(rng.sample(range(count), count - round(share * count)))
    return with_kept(state, kept)


def number_of(layer: str) -> int:
    """Return the number of a layer in the model, by the name of its MoE block."""
    return int(layer.split(".")[1])


def with_kept(state: State, kept: Mapping[int, Sequence[int]]) -> State:
    """Return the weights with only these experts of each layer: their weights, router rows and biases."""
    found = dict(state)
    for layer in moe_layers(state):
        stay = torch.tensor(kept[number_of(layer)])
        names = [f"{layer}.experts.{which}" for which in LINEARS]
        for name in (*names, f"{layer}.gate.weight", f"{layer}.gate.e_score_correction_bias"):
            found[name] = state[name][stay]
    return found


# What `halfbyte quantize` does with each recipe, then what no recipe should do.
VARIANTS: dict[str, Callable[[State], State]] = {
    "nvfp4": lambda state: recoded(state, "nvfp4_ct", "max"),  # kimi-k2.6-nvfp4a16
    "mxfp4": lambda state: recoded(state, "mxfp4", "even"),  # kimi-k2.6-mxfp4-wafer
    "prune25": lambda state: pruned(state, 0.25),
    "prune50": lambda state: pruned(state, 0.5),
}
