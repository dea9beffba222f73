"""FP8 (E4M3) codes with one FP32 scale per 128 x 128 block, or one scale per row."""

from __future__ import annotations

from typing import Any

from halfbyte.formats import compressed_tensors
from halfbyte.formats.format import (
    E4M3,
    WHOLE_ROW,
    Activations,
    BlockOptions,
    Declared,
    Format,
    Gpu,
    Part,
    RecipeKeys,
    lazy,
)

_NAME = "float-quantized"
_INPUTS = Activations("fp8", computes_in="fp8", card="FP8 (E4M3), scaled at inference")


def _channel_config(options: BlockOptions) -> dict[str, Any]:
    inputs = compressed_tensors.scheme(8, "float", "token", None, True) if options.quantizes_inputs else None
    weights = compressed_tensors.scheme(8, "float", "channel", None, False)
    return compressed_tensors.config_block(_NAME, weights, inputs, options.ignore)


FP8_BLOCK = Format(
    name="fp8_block",
    title="FP8 E4M3, 128x128 blocks",
    used_by="Kimi-K2-Instruct, DeepSeek-V3 releases",
    card="FP8 (E4M3) values with one FP32 scale per 128 x 128 block",
    element=E4M3,
    block=128,
    partial_blocks=True,
    tensors=(Part("weight", "F8_E4M3"), Part("weight_scale_inv", "F32", rows=128, columns=128)),
    reference=lazy("reference.fp8:BLOCK_REFERENCE"),
    cpu=lazy("cpu.fp8:BLOCK_CODEC"),
    gpu=Gpu(lazy("gpu.decode:FP8_BLOCK")),
    activations=_INPUTS,
    declared=(Declared("fp8"), Declared(compressed_tensors.METHOD, _NAME)),
    served_as="fp8-block",
)

FP8_CHANNEL = Format(
    name="fp8_channel",
    title="FP8 E4M3, one scale a row (compressed-tensors float-quantized)",
    used_by="FP8 references for MI350 and Hopper",
    card="FP8 (E4M3) values with one scale per row",
    element=E4M3,
    block=0,
    # compressed-tensors writes the scale in the dtype of the weights; other tools write F32.
    tensors=(Part("weight", "F8_E4M3"), Part("weight_scale", "BF16", columns=WHOLE_ROW, also="F32")),
    encodes=("max",),
    reference=lazy("reference.fp8:CHANNEL_REFERENCE"),
    cpu=lazy("cpu.fp8:CHANNEL_CODEC"),
    gpu=Gpu(lazy("gpu.decode:FP8_CHANNEL"), stacks=False),
    activations=_INPUTS,
    declared=(Declared(compressed_tensors.METHOD, _NAME),),
    config_block=_channel_config,
    recipe=RecipeKeys(activations=("none", "dynamic")),
    served_as="fp8-channel",
)
