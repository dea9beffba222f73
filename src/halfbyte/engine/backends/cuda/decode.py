"""Decode stacks of any stored format to BF16, for the forward pass and for encoders that read BF16."""

from __future__ import annotations

import torch

from halfbyte.engine.backends.cuda.projections import positions
from halfbyte.engine.backends.cuda.stacks import Stack
from halfbyte.engine.backends.cuda.streams import Lane, Mark
from halfbyte.formats.gpu.decode import int4_to_bf16, mxfp4_to_bf16, nvfp4_to_bf16
from halfbyte.formats.gpu.fp8 import fp8_block_to_bf16
from halfbyte.forward.experts import Weights


def to_bf16(stack: Stack) -> torch.Tensor:
    """Return the BF16 weights of a stack or of a slice of one, [E, N, K]."""
    tensors, stored = stack.tensors, stack.of.format
    match stored:
        case "bf16":
            return tensors["weight"]
        case "int4":
            return int4_to_bf16(tensors["weight_packed"], tensors["weight_scale"])
        case "fp8_block":
            return fp8_block_to_bf16(tensors["weight"].view(torch.float8_e4m3fn), tensors["weight_scale_inv"])
        case "nvfp4":
            return nvfp4_to_bf16(tensors["weight"], tensors["weight_scale"], tensors["weight_scale_2"])
        case "nvfp4_ct":
            codes, scale, global_scale = (tensors[s] for s in ("weight_packed", "weight_scale", "weight_global_scale"))
            return nvfp4_to_bf16(codes, scale, global_scale, spelling=stored)
        case _:
            return mxfp4_to_bf16(tensors["weight" if stored == "mxfp4" else "weight_packed"], tensors["weight_scale"])


class Experts:
    """Returns the decoded experts of a layer to the forward pass, one at a time."""

    def __init__(self, stacks: dict[str, Stack], lane: Lane) -> None:
        self._stacks = [stacks[name] for name in ("gate_proj", "up_proj", "down_proj")]
        self._at, self._lane = positions(self._stacks[0].of), lane
        self.attention_end: Mark | None = None  # set when the first expert is requested

    def __call__(self, number: int) -> Weights:
        """Return the decoded matrices of an expert."""
        if self.attention_end is None:
            self.attention_end = self._lane.mark()
        at = self._at[number]
        gate, up, down = (to_bf16(stack.part(at, at + 1))[0] for stack in self._stacks)
        return gate, up, down
