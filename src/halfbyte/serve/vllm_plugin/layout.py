"""Shapes and dtypes of a format's tensors as vLLM parameters."""

from __future__ import annotations

from typing import Any

import torch

from halfbyte.families.linears import StoredLinear
from halfbyte.formats.format import WHOLE_ROW, Part
from halfbyte.formats.registry import FORMATS

SCALAR, SHAPE = "scalar", "shape"
_DTYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}


def expert_projections(layer: Any) -> dict[str, str]:
    """Return the checkpoint's names of the linears of vLLM's routed experts, by vLLM's id: w1 gate, w3 up, w2 down."""
    return {"w1": layer.ckpt_gate_proj_name, "w3": layer.ckpt_up_proj_name, "w2": layer.ckpt_down_proj_name}


def kind_of(part: Part) -> str:
    """Return "scalar", "shape" (compressed-tensors' weight_shape), "channel", "block" or "rows"."""
    if part.fixed is not None:
        return SHAPE if part.suffix == "weight_shape" else SCALAR
    if part.columns == WHOLE_ROW:
        return "channel"
    return "block" if part.rows > 1 else "rows"


def dtype_of(linear: StoredLinear, part: Part) -> torch.dtype:
    """Return the dtype in the shards, which differs between producers."""
    return _DTYPES[linear.parts[part.suffix].dtype]


def rows_and_columns(linear: StoredLinear, part: Part, n: int, k: int) -> tuple[int, int]:
    """Return the shape of a tensor for a tensor-parallel shard [N, K] of a linear."""
    row = FORMATS[linear.format]
    if row.groups and part.columns == row.block:  # scales of a format with groups of several sizes
        return n, k // linear.group
    rows, columns = part.shape(n, k)
    return rows, columns
