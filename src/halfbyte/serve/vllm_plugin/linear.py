"""A quantized linear in vLLM: packed while it is loaded, BF16 values from then on, computed by vLLM's own product."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod, register_weight_loader_v2_supported_method
from vllm.model_executor.parameter import (
    BasevLLMParameter,
    BlockQuantScaleParameter,
    ChannelQuantScaleParameter,
    ModelWeightParameter,
    PerTensorScaleParameter,
)

from halfbyte.models.linears import StoredLinear
from halfbyte.numerics.formats import FORMATS, Part
from halfbyte.serve.vllm_plugin.delivered import Delivered, shard_name
from halfbyte.serve.vllm_plugin.expand import expand
from halfbyte.serve.vllm_plugin.inputs import fake_of
from halfbyte.serve.vllm_plugin.layout import SCALAR, SHAPE, dtype_of, kind_of, rows_and_columns
from halfbyte.serve.vllm_plugin.scales import ONE_FOR_ALL, refuse_different, refuse_senseless


@register_weight_loader_v2_supported_method
class EmulatedLinearMethod(UnquantizedLinearMethod):
    """Loads a linear in its format, whose parts vLLM may have fused; `linear` stands for all of them."""

    def __init__(
        self, module: str, parts: list[str], linear: StoredLinear, input_scale: str | None, quantize_inputs: bool
    ) -> None:
        super().__init__()
        self.module, self.parts, self.linear = module, [name.rpartition(".")[2] for name in parts], linear
        self.input_scale, self.quantize_inputs = input_scale, quantize_inputs
        self.delivered = Delivered(module)
        self.fake: Any = None

    @property
    def suffixes(self) -> list[str]:
        """Return what is stored for each part."""
        tensors = [part.suffix for part in FORMATS[self.linear.format].tensors]
        return [*tensors, self.input_scale] if self.input_scale else tensors

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Make room for what is stored, under its own names."""
        load = extra_weight_attrs["weight_loader"]
        self.outputs, self.columns, self.dtype = output_partition_sizes, input_size_per_partition, params_dtype
        layer.weight_block_size = [FORMATS["fp8_block"].block] * 2  # vLLM asks the layer where block scales are loaded
        for part in FORMATS[self.linear.format].tensors:
            loader = self.delivered.linear_loader(part.suffix, load)
            layer.register_parameter(part.suffix, self._parameter(part, loader))
        if self.input_scale:
            loader = self.delivered.linear_loader(self.input_scale, load)
            room = torch.empty(len(self.outputs), dtype=torch.float32)
            layer.register_parameter(self.input_scale, PerTensorScaleParameter(data=room, weight_loader=loader))

    def _parameter(self, part: Part, loader: Any) -> torch.nn.Parameter:
        dtype, kind = dtype_of(self.linear, part), kind_of(part)
        if kind == SCALAR:
            return PerTensorScaleParameter(data=torch.empty(len(self.outputs), dtype=dtype), weight_loader=loader)
        if kind == SHAPE:
            return BasevLLMParameter(data=torch.empty(2, dtype=dtype), weight_loader=loader)
        sizes = [rows_and_columns(self.linear, part, n, self.columns) for n in self.outputs]
        room = torch.empty(sum(rows for rows, _ in sizes), sizes[0][1], dtype=dtype)
        if kind == "channel":
            return ChannelQuantScaleParameter(data=room, output_dim=0, weight_loader=loader)
        made = BlockQuantScaleParameter if kind == "block" else ModelWeightParameter
        return made(data=room, input_dim=1, output_dim=0, weight_loader=loader)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check what came, put BF16 values in its place, and leave the rest to vLLM."""
        fused = len(self.outputs) > 1
        names = [shard_name(at if fused else None) for at in range(len(self.outputs))]
        self.delivered.refuse_missing(names, self.suffixes)
        stored = [self._stored(layer, at) for at in range(len(self.outputs))]
        for name, tensors in zip(self.parts, stored, strict=True):
            refuse_senseless(f"{self.module} ({name})", self.linear.format, tensors)
        for suffix in set(ONE_FOR_ALL) & set(self.suffixes):
            by_part = {name: tensors[suffix] for name, tensors in zip(self.parts, stored, strict=True)}
            refuse_different(self.module, suffix, by_part)
        weight = torch.cat([expand(self.linear.format, tensors, self.linear.group) for tensors in stored])
        if self.quantize_inputs:
            scale = getattr(layer, self.input_scale).data.clone() if self.input_scale else None
            self.fake = fake_of(self.linear.format, scale)
        for suffix in self.suffixes:
            delattr(layer, suffix)
        kept = ModelWeightParameter(data=weight.to(self.dtype), input_dim=1, output_dim=0, weight_loader=_loaded_once)
        layer.register_parameter("weight", kept)
        super().process_weights_after_loading(layer)

    def _stored(self, layer: torch.nn.Module, at: int) -> dict[str, torch.Tensor]:
        """Return the tensors of one of the fused parts, by suffix."""
        found: dict[str, torch.Tensor] = {}
        for part in FORMATS[self.linear.format].tensors:
            tensor = getattr(layer, part.suffix).data
            if kind_of(part) == SCALAR:
                found[part.suffix] = tensor[at]
            elif kind_of(part) != SHAPE:
                rows = [rows_and_columns(self.linear, part, n, self.columns)[0] for n in self.outputs]
                found[part.suffix] = tensor[sum(rows[:at]) : sum(rows[: at + 1])]
        if self.input_scale:
            found[self.input_scale] = getattr(layer, self.input_scale).data[at]
        return found

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product, of quantized inputs where the hardware would quantize them."""
        return super().apply(layer, x if self.fake is None else self.fake(x), bias)


def _loaded_once(*_: Any) -> None:
    raise NotImplementedError("halfbyte_emulate loads weights once: start the server again")
