"""Decode stacks of any stored format to BF16, for the forward pass and for encoders that read BF16."""

from __future__ import annotations

import torch

from halfbyte.engine.backends.cuda.projections import positions
from halfbyte.engine.backends.cuda.stacks import Stack
from halfbyte.engine.backends.cuda.streams import Lane, Mark
from halfbyte.families.family import PROJECTIONS
from halfbyte.formats.registry import FORMATS
from halfbyte.forward.experts import Weights


def to_bf16(stack: Stack) -> torch.Tensor:
    """Return the BF16 weights of a stack or of a slice of one, [E, N, K]."""
    gpu = FORMATS[stack.of.format].gpu
    assert gpu is not None  # `projections` stacks no other formats
    return gpu.codec().decode(stack.tensors)


class Experts:
    """Returns the decoded experts of a layer to the forward pass, one at a time."""

    def __init__(self, stacks: dict[str, Stack], lane: Lane) -> None:
        self._stacks = [stacks[name] for name in PROJECTIONS]
        self._at, self._lane = positions(self._stacks[0].of), lane
        self.attention_end: Mark | None = None  # set when the first expert is requested

    def __call__(self, number: int) -> Weights:
        """Return the decoded matrices of an expert."""
        if self.attention_end is None:
            self.attention_end = self._lane.mark()
        at = self._at[number]
        gate, up, down = (to_bf16(stack.part(at, at + 1))[0] for stack in self._stacks)
        return gate, up, down
