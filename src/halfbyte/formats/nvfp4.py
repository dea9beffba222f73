"""NVFP4: E2M1 codes, an E4M3 scale per 16 columns and an FP32 scale per tensor, in two tools' spellings."""

from __future__ import annotations

from typing import Any

from halfbyte.formats import compressed_tensors
from halfbyte.formats.format import (
    E2M1,
    WRITTEN_BY,
    Activations,
    BlockOptions,
    Declared,
    Format,
    Gpu,
    InputScale,
    Part,
    RecipeKeys,
    lazy,
)

_CT_NAME = "nvfp4-pack-quantized"
_WEIGHTS_ONLY = "W4A16_NVFP4"  # ModelOpt's name for NVFP4 weights with BF16 activations
_CARD = "NVFP4: FP4 (E2M1) values with one FP8 (E4M3) scale per 16 values and one FP32 scale per tensor"


_INPUTS = Activations(
    "nvfp4",
    computes_in="fp4",
    card="NVFP4: one stored FP32 scale per tensor{scale}; one FP8 (E4M3) scale per 16 values, computed at inference",
    emulate=lazy("emulated_activations:nvfp4"),
)


def _algorithm(options: BlockOptions) -> str:
    """Return ModelOpt's algorithm name, the only key of hf_quant_config.json that marks weight-only quantization."""
    return "NVFP4" if options.quantizes_inputs else _WEIGHTS_ONLY


def _modelopt_config(options: BlockOptions) -> dict[str, Any]:
    fp4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    inputs = fp4 if options.quantizes_inputs else None
    block: dict[str, Any] = {
        "config_groups": {"group_0": {"input_activations": inputs, "weights": fp4, "targets": ["Linear"]}},
        "ignore": options.ignore,
        "quant_algo": _algorithm(options),
    }
    if options.kv_cache:
        block["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    # `producer` must name ModelOpt: vLLM and TensorRT-LLM recognize hf_quant_config.json by it.
    return {
        **block,
        "producer": {"name": "modelopt", "version": options.producer_version},
        "written_by": WRITTEN_BY,
        "quant_method": "modelopt",
    }


def _hf_quant_config(options: BlockOptions) -> dict[str, Any]:
    """Return hf_quant_config.json, which ModelOpt writes in addition to the block and older engines read."""
    return {
        "producer": {"name": "modelopt", "version": options.producer_version},
        "written_by": WRITTEN_BY,
        "quantization": {
            "quant_algo": _algorithm(options),
            "kv_cache_quant_algo": "FP8" if options.kv_cache else None,
            "group_size": 16,
            "exclude_modules": options.ignore,
        },
    }


def _ct_config(options: BlockOptions) -> dict[str, Any]:
    inputs = compressed_tensors.scheme(4, "float", "tensor_group", 16, "local") if options.quantizes_inputs else None
    weights = compressed_tensors.scheme(4, "float", "tensor_group", 16, False)
    return compressed_tensors.config_block(_CT_NAME, weights, inputs, options.ignore)


NVFP4 = Format(
    name="nvfp4",
    title="NVFP4, ModelOpt spelling",
    used_by="NVIDIA's, wafer's and decart's releases; vLLM, SGLang, TensorRT-LLM",
    card=_CARD,
    element=E2M1,
    block=16,
    tensors=(
        Part("weight", "U8", columns=2),
        Part("weight_scale", "F8_E4M3", columns=16),
        Part("weight_scale_2", "F32", fixed=()),
    ),
    encodes=("max", "mse", "gptq"),
    divisions=("ieee", "reciprocal"),
    reference=lazy("reference.nvfp4:MODELOPT"),
    cpu=lazy("cpu.fp4:NVFP4"),
    gpu=Gpu(lazy("gpu.nvfp4:MODELOPT"), encodes=("max", "mse", "gptq")),
    input_scale=InputScale("input_scale", ()),
    activations=_INPUTS,
    declared=(Declared("modelopt", "NVFP4"), Declared("modelopt", _WEIGHTS_ONLY, weights_only=True)),
    config_block=_modelopt_config,
    hf_quant_config=_hf_quant_config,
    # Only ModelOpt's format stores KV scales for MLA attention.
    recipe=RecipeKeys(
        activations=("none", "calibrated", "fixed"),
        kv_cache=("none", "fp8", "fp8_cast"),
        names_producer=True,
        patterns="glob",
    ),
    served_as="nvfp4-modelopt",
)

NVFP4_CT = Format(
    name="nvfp4_ct",
    title="NVFP4, compressed-tensors spelling",
    used_by="Red Hat's releases; vLLM, SGLang",
    card=_CARD,
    element=E2M1,
    block=16,
    tensors=(
        Part("weight_packed", "U8", columns=2),
        Part("weight_scale", "F8_E4M3", columns=16),
        Part("weight_global_scale", "F32", fixed=(1,)),
    ),
    encodes=("compressed-tensors", "max", "mse"),
    reference=lazy("reference.nvfp4:COMPRESSED_TENSORS"),
    cpu=lazy("cpu.fp4:NVFP4_CT"),
    gpu=Gpu(lazy("gpu.nvfp4:COMPRESSED_TENSORS"), encodes=("compressed-tensors", "max", "mse")),
    input_scale=InputScale("input_global_scale", (1,), reciprocal=True),
    activations=_INPUTS,
    declared=(Declared(compressed_tensors.METHOD, _CT_NAME),),
    config_block=_ct_config,
    recipe=RecipeKeys(activations=("none", "calibrated", "fixed")),
    served_as="nvfp4-compressed-tensors",
)
