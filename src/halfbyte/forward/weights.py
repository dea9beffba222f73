"""A checkpoint's tensors as the forward wants them: linears decoded from whatever format they are stored in."""

from __future__ import annotations

import torch

from halfbyte.forward.config import TextModel
from halfbyte.forward.experts import Expert
from halfbyte.forward.experts import Weights as ExpertWeights
from halfbyte.models.linears import PLAIN
from halfbyte.models.model import Model
from halfbyte.numerics.codec import decode
from halfbyte.numerics.encoded import array_to_torch
from halfbyte.source.headers import TensorInfo
from halfbyte.source.read import Reader
from halfbyte.transform.apply import stored

_WEIGHT = "weight"


class Weights:
    """Tensors by name, read and decoded when they are asked for; any thread may ask."""

    def __init__(self, model: Model, reader: Reader, dtype: torch.dtype = torch.bfloat16) -> None:
        self._model, self._reader, self._dtype = model, reader, dtype

    def __call__(self, name: str) -> torch.Tensor:
        """Return a tensor; KeyError where the checkpoint has none of this name."""
        module, _, suffix = name.rpartition(".")
        linear = self._model.linears.get(module)
        if linear is None:
            return self._as_stored(self._model.plain[name][1])
        if suffix != _WEIGHT or linear.format in PLAIN:
            return self._as_stored(linear.parts[suffix])
        return array_to_torch(decode(stored(linear, self._reader), name=module, threads=1), "BF16")

    def _as_stored(self, info: TensorInfo) -> torch.Tensor:
        return array_to_torch(self._reader.tensor(info), info.dtype)

    def experts(self, text: TextModel, layer: int, device: str = "cpu") -> Expert:
        """Return what gives the decoded matrices of a layer's routed experts, one expert at a time."""
        prefix = f"{text.layer(layer)}mlp.experts."

        def expert(number: int) -> ExpertWeights:
            gate, up, down = (
                self(f"{prefix}{number}.{name}.{_WEIGHT}").to(device, self._dtype)
                for name in ("gate_proj", "up_proj", "down_proj")
            )
            return gate, up, down

        return expert
