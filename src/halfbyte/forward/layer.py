"""One decoder layer built from transformers' modules and tensors by name, without its routed experts."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.forward.config import TextModel
from halfbyte.forward.positions import Sight

Tensors = Callable[[str], torch.Tensor] | Mapping[str, torch.Tensor]
Look = Callable[[str, torch.Tensor], torch.Tensor | None]
_ALWAYS_F32 = "e_score_correction_bias"  # as in transformers: BF16 would change the routing


class Routed(NamedTuple):
    """Inputs of the routed experts for T tokens, and the routing of each token to k experts."""

    x: torch.Tensor  # [T, D]
    indices: torch.Tensor  # [T, k]
    weights: torch.Tensor  # [T, k], FP32
    logits: torch.Tensor  # [T, E], FP32: the router's own


def fetch(tensors: Tensors, name: str) -> torch.Tensor:
    """Return a tensor by its name in the checkpoint."""
    try:
        return tensors(name) if callable(tensors) else tensors[name]
    except KeyError:
        raise CheckpointError(f"'{name}' is missing", where="weights", fix="download the checkpoint again") from None


class DecoderLayer:
    """A decoder layer; its methods are thread-safe."""

    def __init__(
        self,
        model: TextModel,
        index: int,
        tensors: Tensors,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cpu",
    ) -> None:
        layers = model.config.num_hidden_layers
        if index not in range(layers):  # multi-token prediction layers follow the last one
            raise UsageError(f"no layer {index}", fix=f"choose a layer from 0 to {layers - 1}")
        self.index, self.is_moe = index, index >= (model.config.first_k_dense_replace or 0)
        with torch.device("meta"):  # shapes only: the experts alone would take gigabytes
            self._layer: Any = DeepseekV3DecoderLayer(model.config, index)
        if self.is_moe:
            del self._layer.mlp.experts
        load_into(self._layer, model.layer(index), tensors, dtype, device)
        self._watched = _Watched(self._layer)

    @torch.no_grad()
    def attention_part(self, h: torch.Tensor, sight: Sight, look: Look | None = None) -> torch.Tensor:
        """Return hidden states [R, L, D] after attention."""
        with self._watched.by(look) as cache:
            attended, _ = self._layer.self_attn(
                hidden_states=self._layer.input_layernorm(h),
                position_embeddings=(sight.cos, sight.sin),
                attention_mask=sight.mask,
                past_key_values=cache,
            )
        return h + attended

    @torch.no_grad()
    def mlp(self, h: torch.Tensor, look: Look | None = None) -> torch.Tensor:
        """Return hidden states after the MLP of a dense layer."""
        with self._watched.by(look):
            return h + self._layer.mlp(self._layer.post_attention_layernorm(h))

    @torch.no_grad()
    def before_experts(self, h: torch.Tensor) -> Routed:
        """Return the inputs and routing of the experts of a MoE layer."""
        x = self._layer.post_attention_layernorm(h).view(-1, h.shape[-1])
        logits, weights, indices = self._layer.mlp.gate(x)
        return Routed(x, indices, weights, logits)

    @torch.no_grad()
    def after_experts(
        self, h: torch.Tensor, x: torch.Tensor, routed: torch.Tensor, look: Look | None = None
    ) -> torch.Tensor:
        """Return hidden states after a MoE layer, given the sum of its routed experts."""
        with self._watched.by(look):
            return h + (routed.view_as(h) + self._layer.mlp.shared_experts(x.view_as(h)))


def load_into(module: nn.Module, prefix: str, tensors: Tensors, dtype: torch.dtype, device: str) -> None:
    """Load the checkpoint's tensors into a module on the meta device."""
    state: dict[str, torch.Tensor] = {}
    for name, expected in module.state_dict().items():
        tensor = fetch(tensors, prefix + name)
        if tensor.shape != expected.shape:
            what = f"'{prefix}{name}' has shape {list(tensor.shape)}, but config.json requires {list(expected.shape)}"
            raise CheckpointError(what, where="weights", fix="use the config.json that belongs to the weights")
        state[name] = tensor.to(device, torch.float32 if name.endswith(_ALWAYS_F32) else dtype)
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False).eval()


class _Watched:
    """Call a look on the tensors of a layer; one look per thread, because chunks run in parallel."""

    def __init__(self, layer: Any) -> None:
        self._local = threading.local()
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self._before(name))
        # A weak reference, because a cycle would keep the weights until the next garbage collection.
        attention = weakref.ref(layer.self_attn)
        expand = cast("Any", type(layer.self_attn)).expand_kv

        def expand_kv(latent: torch.Tensor, k_rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = cast("tuple[torch.Tensor, torch.Tensor]", expand(attention(), latent, k_rope))
            return self._seen("self_attn.k", k), self._seen("self_attn.v", v)

        layer.self_attn.expand_kv = expand_kv

    @contextmanager
    def by(self, look: Look | None) -> Generator[_Watched | None, None, None]:
        """Enable the look on this thread; yield the object that attention uses as its cache."""
        self._local.look = look
        try:
            yield self if look else None
        finally:
            self._local.look = None

    def update(self, latent: torch.Tensor, k_rope: torch.Tensor, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Replace the cache update of transformers."""
        return self._seen("self_attn.latent", latent), self._seen("self_attn.k_rope", k_rope)

    def _before(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda _, inputs: (self._seen(name, inputs[0]), *inputs[1:])

    def _seen(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        look: Look | None = getattr(self._local, "look", None)
        changed = look(name, tensor) if look else None
        return tensor if changed is None else changed
