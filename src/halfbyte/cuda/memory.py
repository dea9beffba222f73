"""What a run takes of the device, from shapes alone, and how many layers may be there at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from halfbyte.calibrate.stream import Calibration
from halfbyte.cuda.forward import CHUNK_TOKENS
from halfbyte.cuda.slots import SLOT_NBYTES
from halfbyte.cuda.stacks import Projection
from halfbyte.errors import MachineError

MOST_LAYERS = 2  # one that comes and one that runs; what is written is no longer in its stored format
_ONCE = 3 << 29  # CUDA's context, kernels, cuBLAS's workspaces
_BF16 = 2


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on the device."""

    layer: int  # the largest layer's experts, as they are stored
    output: int  # and as they are written
    tokens: int  # what all tokens take: hidden states, what experts are given, what they return
    work: int  # everything that comes and goes

    def total(self, layers: int) -> int:
        """Return the whole, with so many layers there at once."""
        return layers * self.layer + self.output + self.tokens + self.work + _ONCE


def needs(layers: list[list[Projection]], calibration: Calibration | None, *, sweep: bool) -> Needs:
    """Return what a run takes."""
    largest = max([*layers, []], key=lambda found: sum(one.nbytes for one in found))
    layer = sum(one.nbytes for one in largest)
    weights = sum(one.shape[0] * one.shape[1] * len(one.linears) for one in largest)
    matrix = max((one.shape[0] * one.shape[1] for one in largest), default=0)
    output = weights * 9 // 16 + weights // 2048  # codes, block scales, and what quality is made of
    work = SLOT_NBYTES + (weights // 16 + SLOT_NBYTES if sweep else 0)
    tokens = 0
    if calibration is not None:
        config: Any = calibration.text.config
        count = calibration.rows.tokens.size
        tokens = 3 * count * config.hidden_size * _BF16 + count * config.num_experts_per_tok * 32
        # In attention q, k, v and what they are made of; in an expert its three matrices and all that its tokens take.
        heads = config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)
        attention = min(count, CHUNK_TOKENS) * (4 * heads + 4 * config.hidden_size) * _BF16
        routed = count * config.num_experts_per_tok // max(config.n_routed_experts or 1, 1) * 8  # the busiest expert
        expert = min(count, routed) * (4 * config.hidden_size + 4 * config.moe_intermediate_size) * _BF16
        dense = min(count, CHUNK_TOKENS) * 4 * config.intermediate_size * _BF16
        others = 2 * (3 * config.hidden_size * config.intermediate_size + heads * config.hidden_size) * _BF16
        work += max(attention + dense, expert + 3 * matrix * _BF16) + others
    return Needs(layer, output, tokens, work)


def layers_at_once(need: Needs, device: torch.device) -> int:
    """Return how many layers fit; say what would, if not even one does."""
    if device.type != "cuda":
        return MOST_LAYERS
    torch.cuda.empty_cache()  # what an earlier run of this process has left
    free, _ = torch.cuda.mem_get_info(device)
    for layers in range(MOST_LAYERS, 0, -1):
        if need.total(layers) <= free:
            return layers
    least = need.total(1)
    what = f"this run needs {least / 1e9:.1f} GB on the device, of which {free / 1e9:.1f} GB are free"
    spare = free - need.total(1) + need.tokens
    fix = "use a GPU with more memory, or the CPU: --device cpu"
    if need.tokens and spare > 0:
        fix = f"calibrate with {100 * spare // need.tokens} % of the tokens (fewer or shorter samples), or free memory"
    raise MachineError(what, where=str(device), fix=fix)
