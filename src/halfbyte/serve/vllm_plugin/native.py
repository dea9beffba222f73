"""Ask vLLM's own class for the checkpoint's format whether a module is quantized.

This interprets the ignore list exactly as a real deployment does. The class's quantization methods are not created,
because most of them need kernels that this machine lacks.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped

from halfbyte.errors import CheckpointError
from halfbyte.serve.vllm_plugin.packed_tensors import expert_projections

_OF_METHOD = {
    "modelopt": "modelopt_fp4",
    "modelopt_fp4": "modelopt_fp4",
    "compressed-tensors": "compressed-tensors",
    "quark": "quark",
    "fp8": "fp8",
}
_NEVER_MODELOPT = ("vision_tower", "vision_model", "vit_large_projector")  # as in ModelOptQuantConfigBase
_NEVER_COMPRESSED = ("vision_tower", "mm_projector")  # as in KimiK25ForConditionalGeneration


def native_config(block: Mapping[str, Any]) -> QuantizationConfig:
    """Return vLLM's config object for a `quantization_config`."""
    method = str(block.get("quant_method", "modelopt" if "quantization" in block else ""))
    if method not in _OF_METHOD:
        what = f"quant_method '{method}' cannot be emulated"
        raise CheckpointError(what, where="config.json", fix=f"use one of {', '.join(_OF_METHOD)}")
    return get_quantization_config(_OF_METHOD[method]).from_config(copy.deepcopy(dict(block)))


def is_quantized(native: QuantizationConfig, layer: torch.nn.Module, prefix: str) -> bool:
    """Return whether vLLM treats a linear, or the routed experts of a layer, as quantized."""
    name = native.get_name()
    if name == "modelopt_fp4":
        return not native.is_layer_excluded(prefix) and not any(part in prefix for part in _NEVER_MODELOPT)
    if name == "compressed-tensors":
        return _compressed_tensors_quantizes(native, layer, prefix)
    if name == "quark":
        return isinstance(layer, (LinearBase, RoutedExperts)) and _quark_quantizes(native, layer, prefix)
    skipped = is_layer_skipped(
        prefix=prefix, ignored_layers=native.ignored_layers, fused_mapping=native.packed_modules_mapping
    )
    return isinstance(layer, (LinearBase, RoutedExperts)) and not skipped


def _compressed_tensors_quantizes(native: Any, layer: torch.nn.Module, prefix: str) -> bool:
    if prefix.startswith(_NEVER_COMPRESSED):
        return False
    if not isinstance(layer, RoutedExperts):
        return native.get_scheme_dict(layer, prefix) is not None
    # Like CompressedTensorsMoEMethod.get_moe_method, which checks only expert 0.
    native._add_fused_moe_to_target_scheme_map()
    projections = expert_projections(layer).values()
    return all(native.get_scheme_dict(layer, f"{prefix}.0.{name}") is not None for name in projections)


def _quark_quantizes(native: Any, layer: torch.nn.Module, prefix: str) -> bool:
    from vllm.model_executor.layers.quantization.quark.utils import should_ignore_layer

    return not should_ignore_layer(
        prefix,
        ignore=native.quant_config.get("exclude"),
        fused_mapping=native.packed_modules_mapping,
        check_children=isinstance(layer, RoutedExperts),
    )
