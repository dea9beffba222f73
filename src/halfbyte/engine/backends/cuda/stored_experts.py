"""Load a checkpoint's routed experts to the device layer by layer, and decode them there.

Memory is allocated per layer and freed with the last reference to an expert. Layers have the same size, so the next one
reuses the memory.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import torch

from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.backends.cuda.decode import to_bf16
from halfbyte.engine.backends.cuda.memory import SLOT_NBYTES
from halfbyte.engine.backends.cuda.pinned_buffers import Slots
from halfbyte.engine.backends.cuda.projections import Projection, positions, projections
from halfbyte.engine.backends.cuda.stacks import Buffers, Loader
from halfbyte.engine.backends.cuda.streams import Lane
from halfbyte.engine.backends.cuda.timing import Clock
from halfbyte.families.family import PROJECTIONS
from halfbyte.families.linears import StoredLinear
from halfbyte.families.model import Model
from halfbyte.families.weights import Weights
from halfbyte.forward.experts import Expert
from halfbyte.forward.experts import Weights as ExpertWeights
from halfbyte.plan.rules import ROUTED

if TYPE_CHECKING:
    from typing_extensions import Self

_SLOTS = 3  # two being read, one being copied
_READERS = 4


class StoredExperts:
    """Loads the experts of a layer; not thread-safe. A context manager that stops its threads.

    Experts that cannot be stacked, because their formats differ, are decoded on the host one by one.
    """

    def __init__(
        self, model: Model, reader: Reader, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._weights, self._dtype, self._device = weights, dtype, device
        routed: dict[int, list[StoredLinear]] = {}
        for linear in model.linears.values():
            if linear.role == ROUTED and linear.layer is not None:
                routed.setdefault(linear.layer, []).append(linear)
        self._stacks: dict[int, list[Projection]] = {layer: projections(linears) for layer, linears in routed.items()}
        self.nbytes = max((sum(stack.nbytes for stack in stacks) for stacks in self._stacks.values()), default=0)
        largest = max((linear.parts[suffix].nbytes for stacks in self._stacks.values() for stack in stacks
                       for linear in stack.linears for suffix in stack.suffixes()), default=1)  # fmt: skip
        slot = max(largest, SLOT_NBYTES if device.type == "cuda" else 1)
        self._lane = Lane(device)
        self._loader = Loader(reader, Slots(_SLOTS, device, slot), [self._lane], _READERS, Clock())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loader.close()

    def __call__(self, layer: int) -> Expert:
        """Load a layer, and return a function that decodes one of its experts."""
        layer_stacks = self._stacks.get(layer)
        if not layer_stacks:
            return self._weights.experts(layer, str(self._device))
        with self._lane:  # allocate in the lane that writes the memory
            buffers = Buffers(0, [self._device])
            (stacks,) = self._loader.load(layer_stacks, buffers, buffers.fresh())
        self._lane.mark().wait()
        at = positions(layer_stacks[0])

        def expert(number: int) -> ExpertWeights:
            where = at[number]
            gate, up, down = (to_bf16(stacks[name].part(where, where + 1))[0].to(self._dtype) for name in PROJECTIONS)
            return gate, up, down

        return expert
