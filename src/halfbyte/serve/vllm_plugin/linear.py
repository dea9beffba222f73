"""A quantized linear in vLLM: packed while loading, then BF16 values multiplied by vLLM's own kernel."""

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

from halfbyte.families.linears import StoredLinear
from halfbyte.formats.format import Part
from halfbyte.formats.fp8 import FP8_BLOCK
from halfbyte.formats.registry import FORMATS
from halfbyte.serve.vllm_plugin.packed_tensors import (
    PER_TENSOR,
    SCALAR,
    SHAPE,
    LoadedTensors,
    dtype_of,
    expand,
    fake_of,
    kind_of,
    refuse_different_scales,
    refuse_invalid_scales,
    rows_and_columns,
    shard_name,
    suffixes_of,
)


@register_weight_loader_v2_supported_method
class EmulatedLinearMethod(UnquantizedLinearMethod):
    """Loads a possibly fused linear in its stored format; `linear` represents all of its parts."""

    def __init__(
        self, module: str, parts: list[str], linear: StoredLinear, input_scale: str | None, quantize_inputs: bool
    ) -> None:
        super().__init__()
        self.module, self.parts, self.linear = module, [name.rpartition(".")[2] for name in parts], linear
        self.input_scale, self.quantize_inputs = input_scale, quantize_inputs
        self.suffixes = suffixes_of(linear, input_scale)
        self.loaded = LoadedTensors(module)
        self.fake: Any = None

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
        """Register parameters for the stored tensors, under their own names."""
        load = extra_weight_attrs["weight_loader"]
        self.outputs, self.columns, self.dtype = output_partition_sizes, input_size_per_partition, params_dtype
        layer.weight_block_size = [FP8_BLOCK.block] * 2  # read by vLLM's loader of block scales
        for part in FORMATS[self.linear.format].tensors:
            loader = self.loaded.linear_loader(part.suffix, load)
            layer.register_parameter(part.suffix, self._parameter(part, loader))
        if self.input_scale:
            loader = self.loaded.linear_loader(self.input_scale, load)
            data = torch.empty(len(self.outputs), dtype=torch.float32)
            layer.register_parameter(self.input_scale, PerTensorScaleParameter(data=data, weight_loader=loader))

    def _parameter(self, part: Part, loader: Any) -> torch.nn.Parameter:
        dtype, kind = dtype_of(self.linear, part), kind_of(part)
        if kind == SCALAR:
            return PerTensorScaleParameter(data=torch.empty(len(self.outputs), dtype=dtype), weight_loader=loader)
        if kind == SHAPE:
            return BasevLLMParameter(data=torch.empty(2, dtype=dtype), weight_loader=loader)
        sizes = [rows_and_columns(self.linear, part, n, self.columns) for n in self.outputs]
        data = torch.empty(sum(rows for rows, _ in sizes), sizes[0][1], dtype=dtype)
        if kind == "channel":
            return ChannelQuantScaleParameter(data=data, output_dim=0, weight_loader=loader)
        parameter = BlockQuantScaleParameter if kind == "block" else ModelWeightParameter
        return parameter(data=data, input_dim=1, output_dim=0, weight_loader=loader)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Check the loaded tensors, replace them by BF16 values, and let vLLM do the rest."""
        fused = len(self.outputs) > 1
        names = [shard_name(at if fused else None) for at in range(len(self.outputs))]
        self.loaded.refuse_missing(names, self.suffixes)
        stored = [self._stored(layer, at) for at in range(len(self.outputs))]
        for name, tensors in zip(self.parts, stored, strict=True):
            refuse_invalid_scales(f"{self.module} ({name})", self.linear.format, tensors)
        for suffix in set(PER_TENSOR) & set(self.suffixes):
            by_part = {name: tensors[suffix] for name, tensors in zip(self.parts, stored, strict=True)}
            refuse_different_scales(self.module, suffix, by_part)
        weight = torch.cat([expand(self.linear.format, tensors) for tensors in stored])
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
        tensors: dict[str, torch.Tensor] = {}
        for part in FORMATS[self.linear.format].tensors:
            tensor = getattr(layer, part.suffix).data
            if kind_of(part) == SCALAR:
                tensors[part.suffix] = tensor[at]
            elif kind_of(part) != SHAPE:
                rows = [rows_and_columns(self.linear, part, n, self.columns)[0] for n in self.outputs]
                tensors[part.suffix] = tensor[sum(rows[:at]) : sum(rows[: at + 1])]
        if self.input_scale:
            tensors[self.input_scale] = getattr(layer, self.input_scale).data[at]
        return tensors

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product, with inputs quantized like on the hardware."""
        return super().apply(layer, x if self.fake is None else self.fake(x), bias)


def _loaded_once(*_: Any) -> None:
    raise NotImplementedError("halfbyte_emulate cannot reload weights: restart the server")
