"""Tensors of a checkpoint for the forward pass, with linears decoded from any stored format."""

from __future__ import annotations

import torch

from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.checkpoint.reader import Reader
from halfbyte.families.family import PROJECTIONS
from halfbyte.families.linears import PLAIN, read_linear
from halfbyte.families.model import Model
from halfbyte.formats.codec import decode
from halfbyte.formats.encoded import array_to_torch
from halfbyte.forward.experts import Expert
from halfbyte.forward.experts import Weights as ExpertWeights

_WEIGHT = "weight"


class Weights:
    """Tensors by name, read and decoded on demand; thread-safe."""

    def __init__(self, model: Model, reader: Reader, dtype: torch.dtype = torch.bfloat16) -> None:
        self._model, self._reader, self._dtype = model, reader, dtype
        self._experts = model.expert_linears()

    def __call__(self, name: str) -> torch.Tensor:
        """Return a tensor; raise KeyError if the checkpoint has none of this name."""
        module, _, suffix = name.rpartition(".")
        linear = self._model.linears.get(module)
        if linear is None:
            return self._as_stored(self._model.plain[name][1])
        if suffix != _WEIGHT or linear.format in PLAIN:
            return self._as_stored(linear.parts[suffix])
        return array_to_torch(decode(read_linear(linear, self._reader), name=module, threads=1), "BF16")

    def _as_stored(self, info: TensorInfo) -> torch.Tensor:
        return array_to_torch(self._reader.tensor(info), info.dtype)

    def experts(self, layer: int, device: str = "cpu") -> Expert:
        """Return a function that decodes the matrices of one routed expert of a layer."""

        def expert(number: int) -> ExpertWeights:
            linears = (self._experts[layer, number, projection] for projection in PROJECTIONS)
            gate, up, down = (self(f"{linear.module}.{_WEIGHT}").to(device, self._dtype) for linear in linears)
            return gate, up, down

        return expert
