"""Emulate quantized activations: round the inputs of linears as engines do, with `formats.emulated_activations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.families.config_agreement import quantization_config
from halfbyte.families.family import DOWN, GATE
from halfbyte.families.model import Model
from halfbyte.formats.registry import FORMATS
from halfbyte.forward.experts import GATE_UP, Change
from halfbyte.forward.model import Hook, fetch

if TYPE_CHECKING:
    from halfbyte.compare.models import Side

Fake = Callable[[torch.Tensor], torch.Tensor]


def served_activations(side: Side, checkpoint: Checkpoint, model: Model) -> Side:
    """Return the side with activations quantized as in engines."""
    stored = sorted({linear.format for linear in model.linears.values()})
    formats = [name for name in stored if FORMATS[name].activations is not None]
    unknown = [name for name in formats if not is_emulated(name)]
    if unknown:
        what = f"activations of {unknown[0]} are not supported, only those of NVFP4 and MXFP4"
        raise UsageError(what, where=side.name, fix="use --activations off")
    if not formats or not inputs_are_quantized(quantization_config(checkpoint.config, model)):
        return replace(side, emulated={**side.emulated, "activations": "none: weight-only quantization"})
    inputs = _Inputs(side, model)
    description = f"{' and '.join(formats)}, into {len(inputs.quantized):,} linears"
    return replace(side, hook=inputs.hook, change=inputs.change, emulated={**side.emulated, "activations": description})


def is_emulated(format: str) -> bool:
    """Whether the activations of a format can be emulated."""
    activations = FORMATS[format].activations
    return activations is not None and activations.emulate is not None


def tensor_scale(format: str, stored: torch.Tensor) -> torch.Tensor:
    """Return amax / 2688 of a stored input scale."""
    spec = FORMATS[format].input_scale
    return 1 / stored if spec is not None and spec.reciprocal else stored


def emulated_inputs(format: str, scale: torch.Tensor | None) -> Fake:
    """Return the function that rounds the inputs of linears in a format, with a tensor scale if it stores them."""
    activations = FORMATS[format].activations
    assert activations is not None
    assert activations.emulate is not None
    emulate = activations.emulate()
    return emulate if scale is None else lambda x: emulate(x, scale)


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
        self._tensors, self._device = side.tensors, side.device
        self._linears, self._experts = model.linears, model.expert_linears()
        self.quantized = {name: linear.format for name, linear in model.linears.items() if is_emulated(linear.format)}
        self._fused: dict[str, list[str]] = {}
        self._group = model.family.fused_group
        for name in self.quantized:
            self._fused.setdefault(self._group(name), []).append(name)

    def hook(self, layer: int) -> Hook | None:
        """Return the hook that quantizes the inputs of a layer's linears outside its routed experts."""
        ready = {
            linear.in_layer: self._fake(linear.module)
            for linear in self._linears.values()
            if linear.layer == layer and linear.expert is None and linear.module in self.quantized
        }

        def hook(name: str, tensor: torch.Tensor) -> torch.Tensor | None:
            fake = ready.get(name)
            return fake(tensor) if fake else None

        return hook if ready else None

    def change(self, layer: int) -> Change | None:
        """Return the function that quantizes the inputs of a layer's routed experts."""
        modules = {key[1:]: linear.module for key, linear in self._experts.items() if key[0] == layer}
        if not any(module in self.quantized for module in modules.values()):
            return None

        def change(expert: int, which: str, tensor: torch.Tensor) -> torch.Tensor:
            name = modules[expert, GATE if which == GATE_UP else DOWN]
            return self._fake(name)(tensor) if name in self.quantized else tensor

        return change

    def _fake(self, module: str) -> Fake:
        format = self.quantized[module]
        if FORMATS[format].input_scale is None:
            return emulated_inputs(format, None)
        # Engines fuse gate and up, and quantize their input once with the larger scale.
        # The scale must be on the device: PyTorch divides by host scalars with a rounded reciprocal.
        scales = [self._scale(name) for name in self._fused[self._group(module)]]
        return emulated_inputs(format, torch.stack(scales).amax().to(self._device))

    def _scale(self, module: str) -> torch.Tensor:
        suffix = FORMATS[self.quantized[module]].input_scale_suffix
        try:
            stored = fetch(self._tensors, f"{module}.{suffix}").float().reshape(())
        except CheckpointError:
            what = f"{suffix} is missing, and engines would use uninitialized memory"
            raise CheckpointError(what, where=module, fix="calibrate all experts of the checkpoint again") from None
        scale = tensor_scale(self.quantized[module], stored)
        if not (torch.isfinite(scale) and scale > 0):
            what = f"invalid {suffix} {float(stored)}"
            raise CheckpointError(what, where=module, fix="calibrate the checkpoint again")
        return scale
