"""Emulate an FP8 KV cache on the tensors that MLA caches: the normalized latent and the RoPE key.

Cast converts both to E4M3 without a scale. Scaled divides both by the checkpoint's k_scale first, as in vLLM 0.17 to
0.24 (0.25 to 0.32 drop the scale). That scale was calibrated on expanded keys, a different tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from halfbyte.errors import CheckpointError, UsageError
from halfbyte.forward.model import Look, fetch

if TYPE_CHECKING:
    from halfbyte.compare.models import Side

_E4M3_MAX = 448.0
_CACHED = ("latent", "k_rope")  # in the attention module
_K_SCALE = "k_proj.k_scale"


def fp8(x: torch.Tensor, scale: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Round x to E4M3 under a scale and back, saturating large values."""
    code = (x.float() / scale).clamp_(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return (code.float() * scale).to(x.dtype)


def cached_in_fp8(side: Side, *, scaled: bool) -> Side:
    """Return the side with its KV cache in FP8."""
    if scaled:
        _k_scale(side, 0)  # fails early if the checkpoint has no scales
    description = "fp8, latent and rope key by the checkpoint's k_scale" if scaled else "fp8, cast without scales"
    inner = side.look
    cached_names = [f"{side.model.attention_module}.{name}" for name in _CACHED]

    def look(layer: int) -> Look:
        scale = _k_scale(side, layer).to(side.device) if scaled else 1.0  # on the device, for exact division
        others = inner(layer) if inner else None

        def cached(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            if name in cached_names:
                return fp8(tensor, scale)
            return others(name, tensor) if others else None

        return cached

    return replace(side, look=look, emulated={**side.emulated, "kv": description})


def _k_scale(side: Side, layer: int) -> torch.Tensor:
    try:
        name = f"{side.model.layer(layer)}{side.model.attention_module}.{_K_SCALE}"
        scale = fetch(side.tensors, name).float().reshape(())
    except CheckpointError:
        what = "the checkpoint has no k_scale"
        raise UsageError(what, where=side.name, fix="use --kv fp8, as engines do for this checkpoint") from None
    if not (torch.isfinite(scale) and scale > 0):
        raise CheckpointError(f"k_scale of layer {layer} is {float(scale)}", where=side.name, fix="calibrate it again")
    return scale
