"""One decoder layer by transformers' own modules, from tensors by name; its routed experts lie outside it."""

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
from halfbyte.forward.sight import Sight

Tensors = Callable[[str], torch.Tensor] | Mapping[str, torch.Tensor]
Look = Callable[[str, torch.Tensor], torch.Tensor | None]
_ALWAYS_F32 = "e_score_correction_bias"  # transformers keeps it so in every dtype: BF16 would change who is chosen


class Routed(NamedTuple):
    """What the routed experts see of T tokens, and which k of them see each token, with what weight."""

    x: torch.Tensor  # [T, D]
    indices: torch.Tensor  # [T, k]
    weights: torch.Tensor  # [T, k], FP32
    logits: torch.Tensor  # [T, E], FP32: the router's own


def fetch(tensors: Tensors, name: str) -> torch.Tensor:
    """Return a tensor by its name in the checkpoint."""
    try:
        return tensors(name) if callable(tensors) else tensors[name]
    except KeyError:
        raise CheckpointError(f"there is no '{name}'", where="weights", fix="download the checkpoint again") from None


class DecoderLayer:
    """A layer whose parts any number of threads may run at once."""

    def __init__(
        self,
        model: TextModel,
        index: int,
        tensors: Tensors,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cpu",
    ) -> None:
        layers = model.config.num_hidden_layers
        if index not in range(layers):  # those for multi-token prediction come after the last
            raise UsageError(f"there is no layer {index} to run", fix=f"the model runs layers 0 to {layers - 1}")
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
        """Return what the experts of a MoE layer are given."""
        x = self._layer.post_attention_layernorm(h).view(-1, h.shape[-1])
        logits, weights, indices = self._layer.mlp.gate(x)
        return Routed(x, indices, weights, logits)

    @torch.no_grad()
    def after_experts(
        self, h: torch.Tensor, x: torch.Tensor, routed: torch.Tensor, look: Look | None = None
    ) -> torch.Tensor:
        """Return hidden states after a MoE layer: the sum of its routed experts, and its shared ones."""
        with self._watched.by(look):
            return h + (routed.view_as(h) + self._layer.mlp.shared_experts(x.view_as(h)))


def load_into(module: nn.Module, prefix: str, tensors: Tensors, dtype: torch.dtype, device: str) -> None:
    """Put the checkpoint's tensors in the places of a module's own, which have only shapes."""
    state: dict[str, torch.Tensor] = {}
    for name, wanted in module.state_dict().items():
        found = fetch(tensors, prefix + name)
        if found.shape != wanted.shape:
            what = f"'{prefix}{name}' has the shape {list(found.shape)}, but config.json wants {list(wanted.shape)}"
            raise CheckpointError(what, where="weights", fix="config.json and the weights do not belong together")
        state[name] = found.to(device, torch.float32 if name.endswith(_ALWAYS_F32) else dtype)
    module.load_state_dict(state, strict=True, assign=True)
    module.requires_grad_(False).eval()


class _Watched:
    """Shows a look what flows through a layer: each thread its own, because chunks run side by side."""

    def __init__(self, layer: Any) -> None:
        self._here = threading.local()
        for name, module in layer.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(self._before(name))
        # Weakly, or attention would hold itself, and its weights would stay until the collector comes by.
        attention = weakref.ref(layer.self_attn)
        expand = cast("Any", type(layer.self_attn)).expand_kv

        def expand_kv(latent: torch.Tensor, k_rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            k, v = cast("tuple[torch.Tensor, torch.Tensor]", expand(attention(), latent, k_rope))
            return self._seen("self_attn.k", k), self._seen("self_attn.v", v)

        layer.self_attn.expand_kv = expand_kv

    @contextmanager
    def by(self, look: Look | None) -> Generator[_Watched | None, None, None]:
        """Look from here on, on this thread; yield what attention takes for its cache."""
        self._here.look = look
        try:
            yield self if look else None
        finally:
            self._here.look = None

    def update(self, latent: torch.Tensor, k_rope: torch.Tensor, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Stand where transformers would keep the latent."""
        return self._seen("self_attn.latent", latent), self._seen("self_attn.k_rope", k_rope)

    def _before(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
        return lambda _, inputs: (self._seen(name, inputs[0]), *inputs[1:])

    def _seen(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        look: Look | None = getattr(self._here, "look", None)
        changed = look(name, tensor) if look else None
        return tensor if changed is None else changed
