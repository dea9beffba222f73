"""A checkpoint's routed experts for a forward on the device: a layer's stored bytes go there, and are decoded there.

Memory is taken anew for each layer and freed with the last expert that holds it; layers of a checkpoint are alike, so
the next one fits where one was.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

import torch

from halfbyte.cuda.clock import Clock
from halfbyte.cuda.decode import to_bf16
from halfbyte.cuda.lanes import Lane
from halfbyte.cuda.memory import SLOT_NBYTES
from halfbyte.cuda.projections import Projection, positions, projections
from halfbyte.cuda.slots import Slots
from halfbyte.cuda.stacks import Buffers, Loader
from halfbyte.forward.config import TextModel
from halfbyte.forward.experts import Expert
from halfbyte.forward.experts import Weights as ExpertWeights
from halfbyte.forward.weights import Weights
from halfbyte.models.linears import StoredLinear
from halfbyte.models.model import Model
from halfbyte.plan.rules import ROUTED
from halfbyte.source.read import Reader

if TYPE_CHECKING:
    from typing_extensions import Self

_SLOTS = 3  # two that are being read, and one that is being copied
_READERS = 4
_NAMES = ("gate_proj", "up_proj", "down_proj")


class StoredExperts:
    """Gives what gives the experts of a layer; one thread at a time may ask. A context manager that ends its threads.

    Experts that are not all stored alike make no stacks: they are decoded on the host, one by one.
    """

    def __init__(
        self, model: Model, text: TextModel, reader: Reader, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._text, self._weights, self._dtype, self._device = text, weights, dtype, device
        routed: dict[int, list[StoredLinear]] = {}
        for linear in model.linears.values():
            if linear.role == ROUTED and linear.layer is not None:
                routed.setdefault(linear.layer, []).append(linear)
        self._stacks: dict[int, list[Projection]] = {layer: projections(found) for layer, found in routed.items()}
        self.nbytes = max((sum(one.nbytes for one in found) for found in self._stacks.values()), default=0)
        largest = max((linear.parts[suffix].nbytes for found in self._stacks.values() for one in found
                       for linear in one.linears for suffix in one.suffixes()), default=1)  # fmt: skip
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
        """Read a layer and copy it over; what is returned decodes an expert of it."""
        found = self._stacks.get(layer)
        if not found:
            return self._weights.experts(self._text, layer, str(self._device))
        with self._lane:  # memory is taken where it is written
            buffers = Buffers(0, [self._device])
            (stacks,) = self._loader.load(found, buffers, buffers.fresh())
        self._lane.mark().wait()
        at = positions(found[0])

        def expert(number: int) -> ExpertWeights:
            where = at[number]
            gate, up, down = (to_bf16(stacks[name].part(where, where + 1))[0].to(self._dtype) for name in _NAMES)
            return gate, up, down

        return expert
