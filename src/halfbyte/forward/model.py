"""The interface of a model for the forward pass. Each family implements it with transformers' modules.

A `TextModel` has the dimensions and tensor names of a model, and builds its decoder layers: `families/*/forward.py`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from halfbyte.errors import CheckpointError
from halfbyte.forward.experts import Expert
from halfbyte.forward.positions import AttentionInputs

Tensors = Callable[[str], torch.Tensor] | Mapping[str, torch.Tensor]
# Called with a name in the layer and a tensor, [R, L, d] or, with heads, [R, H, L, d]; may return a replacement.
Hook = Callable[[str, torch.Tensor], torch.Tensor | None]


class Routed(NamedTuple):
    """Inputs of the routed experts for T tokens, and the routing of each token to k experts."""

    x: torch.Tensor  # [T, D]
    indices: torch.Tensor  # [T, k]
    weights: torch.Tensor  # [T, k], FP32
    logits: torch.Tensor  # [T, E], FP32: the router's own


class DecoderLayer(Protocol):
    """A decoder layer without its routed experts; its methods are thread-safe."""

    index: int
    is_moe: bool

    def attention_part(self, h: torch.Tensor, inputs: AttentionInputs, hook: Hook | None = None) -> torch.Tensor:
        """Return hidden states [R, L, D] after attention."""
        ...

    def mlp(self, h: torch.Tensor, hook: Hook | None = None) -> torch.Tensor:
        """Return hidden states after the MLP of a dense layer."""
        ...

    def before_experts(self, h: torch.Tensor) -> Routed:
        """Return the inputs and routing of the experts of a MoE layer."""
        ...

    def after_experts(
        self, h: torch.Tensor, x: torch.Tensor, routed: torch.Tensor, hook: Hook | None = None
    ) -> torch.Tensor:
        """Return hidden states after a MoE layer, given the sum of its routed experts."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TextModel(ABC):
    """A model without its weights: dimensions, tensor names, and how to build its parts."""

    config: Any  # transformers' own
    attention: str  # transformers' implementation: sdpa or eager
    layers: int
    width: int
    vocabulary: int
    experts: int  # in each MoE layer
    layer_prefix: str  # of the tensors of layer {L}
    attention_module: str  # name in a layer
    embedding: str
    norm: str
    head: str

    def layer(self, index: int) -> str:
        """Return the name prefix of a layer's tensors."""
        return self.layer_prefix.replace("{L}", str(index))

    @abstractmethod
    def decoder_layer(
        self, index: int, tensors: Tensors, dtype: torch.dtype = torch.bfloat16, device: str = "cpu"
    ) -> DecoderLayer:
        """Build a layer from tensors by name."""

    @abstractmethod
    def rotary(self) -> nn.Module:
        """Return the module that computes RoPE's cos and sin."""

    @abstractmethod
    def final_norm(self) -> nn.Module:
        """Return the norm before the head, without its weight."""

    @abstractmethod
    def comparable(self) -> Mapping[str, Any]:
        """Return the settings that two models must share for their hidden states to be comparable."""

    @abstractmethod
    def whole_model(self) -> Any:
        """Return transformers' whole model on the meta device."""

    @abstractmethod
    def fill(self, model: Any, tensors: Tensors, experts: Callable[[int], Expert]) -> None:
        """Load the decoded weights into a whole model, in FP32."""

    @abstractmethod
    def cache(self, model: Any) -> Any:
        """Return a KV cache with which a whole model generates."""


def fetch(tensors: Tensors, name: str) -> torch.Tensor:
    """Return a tensor by its name in the checkpoint."""
    try:
        return tensors(name) if callable(tensors) else tensors[name]
    except KeyError:
        raise CheckpointError(f"'{name}' is missing", where="weights", fix="download the checkpoint again") from None


def load_into(
    module: nn.Module,
    prefix: str,
    tensors: Tensors,
    dtype: torch.dtype,
    device: str,
    always_f32: tuple[str, ...] = (),
) -> None:
    """Load the checkpoint's tensors into a module on the meta device; names that end in `always_f32` stay FP32."""
    state: dict[str, torch.Tensor] = {}
    for name, expected in module.state_dict().items():
        tensor = fetch(tensors, prefix + name)
        if tensor.shape != expected.shape:
            what = f"'{prefix}{name}' has shape {list(tensor.shape)}, but config.json requires {list(expected.shape)}"
            raise CheckpointError(what, where="weights", fix="use the config.json that belongs to the weights")
        state[name] = tensor.to(device, torch.float32 if name.endswith(always_f32) else dtype)
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False).eval()


class LinearHooks:
    """Call a hook on the inputs of a layer's linears; one hook per thread, because chunks run in parallel."""

    def __init__(self, layer: Any) -> None:
        self._local = threading.local()
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self._before(name))

    @contextmanager
    def use(self, hook: Hook | None) -> Generator[None]:
        """Enable the hook on this thread."""
        self._local.hook = hook
        try:
            yield
        finally:
            self._local.hook = None

    def seen(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Call the hook on a tensor; return the tensor or its replacement."""
        hook: Hook | None = getattr(self._local, "hook", None)
        changed = hook(name, tensor) if hook else None
        return tensor if changed is None else changed

    def _before(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda _, inputs: (self.seen(name, inputs[0]), *inputs[1:])
