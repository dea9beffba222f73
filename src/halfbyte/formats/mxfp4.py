"""MXFP4: E2M1 codes and a power of two (E8M0) per 32 columns, in two tools' spellings."""

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
    Part,
    RecipeKeys,
    lazy,
)

_CT_NAME = "mxfp4-pack-quantized"
_CARD = "MXFP4: FP4 (E2M1) values with one power-of-two (E8M0) scale per 32 values"


_INPUTS = Activations(
    "mxfp4",
    computes_in="fp4",
    card="MXFP4: one E8M0 scale per 32 values, computed at inference; not calibrated",
    emulate=lazy("emulated_activations:mxfp4"),
)


def _quark_config(options: BlockOptions) -> dict[str, Any]:
    """Return AMD Quark's block for vLLM, SGLang and ATOM; vLLM requires the empty keys and takes their length."""
    tensor = {
        "dtype": "fp4",
        "qscheme": "per_group",
        "ch_axis": -1,
        "group_size": 32,
        "symmetric": None,  # Quark's own QConfig.from_dict raises KeyError without it
        "scale_format": "e8m0",
        "scale_calculation_mode": "even",
        "observer_cls": "PerBlockMXObserver",
    }
    inputs = {**tensor, "is_dynamic": True} if options.quantizes_inputs else None
    return {
        "quant_method": "quark",
        "version": options.producer_version,
        "written_by": WRITTEN_BY,
        "global_quant_config": {
            "weight": {**tensor, "is_dynamic": False},
            "input_tensors": inputs,
            "output_tensors": None,
            "bias": None,
        },
        "exclude": options.ignore,
        "algo_config": None,
        "layer_quant_config": {},
        "layer_type_quant_config": {},
        "export": {"pack_method": "reorder", "weight_format": "real_quantized", "kv_cache_group": []},
    }


def _ct_config(options: BlockOptions) -> dict[str, Any]:
    inputs = compressed_tensors.scheme(4, "float", "group", 32, True) if options.quantizes_inputs else None
    weights = compressed_tensors.scheme(4, "float", "group", 32, False)
    return compressed_tensors.config_block(_CT_NAME, weights, inputs, options.ignore)


MXFP4 = Format(
    name="mxfp4",
    title="MXFP4, Quark spelling",
    used_by="AMD's and wafer's releases; ATOM, vLLM and SGLang on ROCm",
    card=_CARD,
    element=E2M1,
    block=32,
    tensors=(Part("weight", "U8", columns=2), Part("weight_scale", "U8", columns=32)),
    encodes=("even",),
    reference=lazy("reference.mxfp4:QUARK"),
    cpu=lazy("cpu.fp4:MXFP4"),
    gpu=Gpu(lazy("gpu.mxfp4:QUARK"), encodes=("even",)),
    activations=_INPUTS,
    declared=(Declared("quark"),),
    config_block=_quark_config,
    recipe=RecipeKeys(activations=("none", "dynamic"), names_producer=True),
    served_as="mxfp4-quark",
)

MXFP4_CT = Format(
    name="mxfp4_ct",
    title="MXFP4, compressed-tensors spelling",
    used_by="Kimi-K3's release; vLLM",
    card=_CARD,
    element=E2M1,
    block=32,
    tensors=(Part("weight_packed", "U8", columns=2), Part("weight_scale", "U8", columns=32)),
    encodes=("even",),
    reference=lazy("reference.mxfp4:COMPRESSED_TENSORS"),
    cpu=lazy("cpu.fp4:MXFP4_CT"),
    gpu=Gpu(lazy("gpu.mxfp4:COMPRESSED_TENSORS"), encodes=("even",)),
    activations=_INPUTS,
    declared=(Declared(compressed_tensors.METHOD, _CT_NAME),),
    config_block=_ct_config,
    recipe=RecipeKeys(activations=("none", "dynamic")),
    served_as="mxfp4-compressed-tensors",
)
