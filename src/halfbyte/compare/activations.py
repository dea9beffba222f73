"""Emulate quantized activations: round the inputs of linears to FP4 and back with PyTorch.

NVFP4 has a calibrated global scale and a dynamic E4M3 scale per 16 values, MXFP4 a power of two per 32 values. The
arithmetic equals that of the weight codec (`formats`) bit for bit, except for the sign of zeros. Engine kernels
multiply by rounded reciprocals instead of dividing, and flush blocks below 2^-19 of the calibrated maximum to zero.
Neither is emulated.

In FP32 the results are not rounded to BF16, because FP4 kernels multiply codes and apply scales in FP32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.declared_formats import quantization_config
from halfbyte.families.model import Model
from halfbyte.forward.experts import GATE_UP, Change
from halfbyte.forward.layer import Look, fetch

if TYPE_CHECKING:
    from halfbyte.compare.models import Side

Fake = Callable[[torch.Tensor], torch.Tensor]

_NVFP4_BLOCK, _MXFP4_BLOCK = 16, 32
_E2M1_MAX, _E4M3_MAX, _E4M3_TINY = 6.0, 448.0, 2.0**-9
_NO_EXPONENT = 0xFF  # beyond FP32's range; the largest scale is used
_HALF_STEPS, _WHOLE_STEPS = 2.0, 4.0  # below these, E2M1 has steps of 0.5 and of 1; above, of 2
# Name of the input scale in each format; input_global_scale is the reciprocal.
INPUT_SCALES = {"nvfp4": "input_scale", "nvfp4_ct": "input_global_scale"}
DYNAMIC = ("mxfp4", "mxfp4_ct")
_WEIGHTS_ONLY = ("int4", "bf16", "f16", "f32")


def nvfp4(x: torch.Tensor, tensor_scale: torch.Tensor) -> torch.Tensor:
    """Round x [..., K] to NVFP4 and back, with a calibrated global scale (amax / 2688), FP32 []."""
    blocks = _in_blocks(x, _NVFP4_BLOCK)
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = amax / (_E2M1_MAX * tensor_scale)  # the product is rounded first
    scale = torch.where(scale == 0, 1.0, scale).clamp_(_E4M3_TINY, _E4M3_MAX).to(torch.float8_e4m3fn).float()
    return _through_e2m1(blocks, scale * tensor_scale).flatten(-2).to(x.dtype)


def mxfp4(x: torch.Tensor) -> torch.Tensor:
    """Round x [..., K] to MXFP4 and back, with Quark's `even` scales."""
    blocks = _in_blocks(x, _MXFP4_BLOCK)
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32)
    exponent = (bits + 0x200000) >> 23  # rounds up from mantissa 1.75
    byte = torch.where(exponent == _NO_EXPONENT, 254, (exponent - 2).clamp_(min=0))
    scale = torch.where(byte == 0, 1 << 22, byte << 23).to(torch.int32).view(torch.float32)  # byte 0 is a subnormal
    return _through_e2m1(blocks, scale).flatten(-2).to(x.dtype)


def _in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    return x.float().reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _through_e2m1(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Round to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 times the scale, ties to even."""
    value = (blocks / scale).clamp_(-_E2M1_MAX, _E2M1_MAX)
    size = value.abs()
    step = torch.where(size < _HALF_STEPS, 0.5, torch.where(size < _WHOLE_STEPS, 1.0, 2.0))
    return value.div_(step).round_().mul_(step).mul_(scale)


def served_activations(side: Side, checkpoint: Checkpoint, model: Model) -> Side:
    """Return the side with activations quantized as in engines."""
    formats = sorted({linear.format for linear in model.linears.values()} - set(_WEIGHTS_ONLY))
    unknown = [name for name in formats if name not in (*INPUT_SCALES, *DYNAMIC)]
    if unknown:
        what = f"activations of {unknown[0]} are not supported, only those of NVFP4 and MXFP4"
        raise UsageError(what, where=side.name, fix="use --activations off")
    if not formats or not inputs_are_quantized(quantization_config(checkpoint.config, model)):
        return replace(side, emulated={**side.emulated, "activations": "none: weight-only quantization"})
    inputs = _Inputs(side, model)
    description = f"{' and '.join(formats)}, into {len(inputs.quantized):,} linears"
    return replace(side, look=inputs.look, change=inputs.change, emulated={**side.emulated, "activations": description})


def inputs_are_quantized(block: Mapping[str, Any] | None) -> bool:
    """Whether engines quantize the inputs of linears with this config."""
    if block is None:
        return True  # an older ModelOpt checkpoint, whose hf_quant_config.json implies both
    if "global_quant_config" in block:
        return cast("Mapping[str, Any]", block["global_quant_config"]).get("input_tensors") is not None
    groups = cast("Mapping[str, Mapping[str, Any]]", block.get("config_groups") or {})
    return not groups or any(group.get("input_activations") is not None for group in groups.values())


class _Inputs:
    """Input quantizers of all linears."""

    def __init__(self, side: Side, model: Model) -> None:
        self._text, self._tensors, self._device = side.model, side.tensors, side.device
        known = (*INPUT_SCALES, *DYNAMIC)
        self.quantized = {name: linear.format for name, linear in model.linears.items() if linear.format in known}
        self._fused: dict[str, list[str]] = {}
        self._group = model.family.fused_group
        for name in self.quantized:
            self._fused.setdefault(self._group(name), []).append(name)

    def look(self, layer: int) -> Look | None:
        """Return the look that quantizes the inputs of a layer's linears outside its routed experts."""
        prefix = self._text.layer(layer)
        ready = {
            name.removeprefix(prefix): self._fake(name)
            for name in self.quantized
            if name.startswith(prefix) and ".experts." not in name
        }

        def look(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            fake = ready.get(name)
            return fake(tensor) if fake else None

        return look if ready else None

    def change(self, layer: int) -> Change | None:
        """Return the function that quantizes the inputs of a layer's routed experts."""
        prefix = f"{self._text.layer(layer)}mlp.experts."
        if not any(name.startswith(prefix) for name in self.quantized):
            return None

        def change(expert: int, which: str, tensor: torch.Tensor) -> torch.Tensor:
            name = f"{prefix}{expert}.{'gate_proj' if which == GATE_UP else 'down_proj'}"
            return self._fake(name)(tensor) if name in self.quantized else tensor

        return change

    def _fake(self, module: str) -> Fake:
        format = self.quantized[module]
        if format in DYNAMIC:
            return mxfp4
        # Engines fuse gate and up, and quantize their input once with the larger scale.
        # The scale must be on the device: PyTorch divides by host scalars with a rounded reciprocal.
        scale = torch.stack([self._scale(name) for name in self._fused[self._group(module)]]).amax().to(self._device)
        return lambda x: nvfp4(x, scale)

    def _scale(self, module: str) -> torch.Tensor:
        suffix = INPUT_SCALES[self.quantized[module]]
        try:
            stored = fetch(self._tensors, f"{module}.{suffix}").float().reshape(())
        except CheckpointError:
            what = f"{suffix} is missing, and engines would use uninitialized memory"
            raise CheckpointError(what, where=module, fix="calibrate all experts of the checkpoint again") from None
        scale = stored if suffix == "input_scale" else 1 / stored
        if not (torch.isfinite(scale) and scale > 0):
            what = f"invalid {suffix} {float(stored)}"
            raise CheckpointError(what, where=module, fix="calibrate the checkpoint again")
        return scale
