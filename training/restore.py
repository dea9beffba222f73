"""From a checkpoint in the release's layout back to the training model's weights, in whatever format it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from halfbyte.formats.codec import decode
from halfbyte.formats.encoded import Encoded, array_to_torch
from halfbyte.formats.registry import FORMATS

EXPERT = re.compile(r"(layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+_proj)\.(\w+)")
FORMAT_OF = {frozenset((part.suffix, part.dtype) for part in row.tensors): row for row in FORMATS.values()}
DTYPES = {
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


def state(folder: Path, prefix: str = "language_model.") -> dict[str, Tensor]:
    """Return the state dict of a checkpoint's text model, FP32."""
    found: dict[str, Tensor] = {}
    experts: dict[tuple[str, str], dict[int, dict[str, Tensor]]] = {}
    for path in sorted(folder.glob("model-*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                if not name.startswith(prefix):
                    continue
                short = name.removeprefix(prefix).removeprefix("model.")
                match = EXPERT.fullmatch(short)
                if match:
                    stack = experts.setdefault((match[1], match[3]), {})
                    stack.setdefault(int(match[2]), {})[match[4]] = file.get_tensor(name)
                    continue
                if short in ("embed_tokens.weight", "lm_head.weight"):
                    short = short.removesuffix(".weight")
                found[short] = file.get_tensor(name).float()
    for (layer, which), stack in experts.items():
        found[f"{layer}.{which}"] = torch.stack([_weight(stack[number]) for number in range(len(stack))])
    return found


def _weight(parts: Mapping[str, Tensor]) -> Tensor:
    """Return one expert's linear; which tensors there are says in which format it is."""
    stored = {suffix: tensor for suffix, tensor in parts.items() if suffix != "input_scale"}  # of activations
    row = FORMAT_OF[frozenset((suffix, DTYPES[tensor.dtype]) for suffix, tensor in stored.items())]
    if row.name == "bf16":
        return stored["weight"].float()
    codes = row.tensors[0]
    rows, columns = stored[codes.suffix].shape
    tensors: dict[str, Any] = dict(stored)
    encoded = Encoded(row.name, (rows, columns * codes.columns), tensors)
    return array_to_torch(decode(encoded), "BF16").float()
