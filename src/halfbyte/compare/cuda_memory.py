"""Compute the device memory of a comparison from shapes, and raise before it starts if it does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfbyte.compare.measures import LOGITS_ON_DEVICE
from halfbyte.errors import MachineError

if TYPE_CHECKING:
    from halfbyte.compare.models import Side

CHUNK_TOKENS = 1 << 14  # per attention call
_ONCE = 3 << 29  # CUDA context, kernels, cuBLAS workspaces
_F32, _F64 = 4, 8
_BUSIEST = 8  # tokens of the busiest expert, relative to the mean
_WORDS = 8192  # rows of the LM head in FP32 at a time


@dataclass(frozen=True, slots=True)
class Needs:
    """Device memory in bytes: per row of tokens, and independent of the number of rows."""

    row: int
    fixed: int

    def total(self, rows: int) -> int:
        """Return the total for a number of rows."""
        return rows * self.row + self.fixed


def needs(shape: tuple[int, int], chunk_rows: int, sides: Sequence[Side]) -> Needs:
    """Return the memory of a comparison: hidden states of all models, and two layers at once."""
    config: Any = sides[0].model.config
    item = max(side.dtype.itemsize for side in sides)
    (rows, length), width = shape, config.hidden_size
    experts = max(config.n_routed_experts or 1, 1)
    # Hidden states and expert routing of each model, and expert inputs and outputs of the running one.
    row = length * ((len(sides) + 2) * width * item + len(sides) * experts + 32 * config.num_experts_per_tok)
    chunk = min(chunk_rows, rows) * length
    heads = config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)
    attention = chunk * (4 * heads + 4 * width) * item + chunk * length * (1 + item)
    dense = chunk * 4 * config.intermediate_size * item
    routed = min(rows * length, rows * length * config.num_experts_per_tok // experts * _BUSIEST)
    matrices = 3 * width * config.moe_intermediate_size * (2 + item)
    expert = routed * 4 * (width + config.moe_intermediate_size) * item + matrices
    apart = 6 * chunk * width * _F64
    logits = 6 * LOGITS_ON_DEVICE * _F64 + _WORDS * width * _F32 + len(sides) * config.vocab_size * width * item
    stored = sum(sorted(side.stored_nbytes for side in sides)[-2:])
    others = 2 * (3 * width * config.intermediate_size + heads * width) * item
    return Needs(row, max(attention + dense, expert, apart, logits) + stored + others + _ONCE)


def refuse_too_large(need: Needs, rows: int, free: int) -> None:
    """Raise if the comparison does not fit into `free` bytes, and suggest a number of rows that does."""
    if need.total(rows) <= free:
        return
    needed = need.total(rows) / 1e9
    what = f"this comparison needs {needed:.1f} GB of device memory, but only {free / 1e9:.1f} GB are free"
    fitting = (free - need.fixed) // need.row
    fewer = f"use fewer rows (--samples {fitting})" if fitting > 0 else "use a GPU with more memory"
    raise MachineError(what, where="--device", fix=f"{fewer}, or --device cpu")


def check_memory(shape: tuple[int, int], chunk_rows: int, sides: Sequence[Side], device: torch.device) -> None:
    """Raise if the comparison does not fit into the device's free memory."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # frees memory cached by earlier runs of this process
        refuse_too_large(needs(shape, chunk_rows, sides), shape[0], torch.cuda.mem_get_info(device)[0])
