"""INT4 codes with one BF16 scale per group, in compressed-tensors' pack-quantized layout."""

from __future__ import annotations

from typing import Any

from halfbyte.formats import compressed_tensors, format
from halfbyte.formats.format import BlockOptions, Declared, Format, Gpu, Part, RecipeKeys, lazy

_NAME = "pack-quantized"


def _config_block(options: BlockOptions) -> dict[str, Any]:
    weights = compressed_tensors.scheme(4, "int", "group", 32, False)
    return compressed_tensors.config_block(_NAME, weights, None, options.ignore)


INT4 = Format(
    name="int4",
    title="INT4, compressed-tensors pack-quantized",
    used_by="Kimi-K2-Thinking, K2.5, K2.6, K2.7-Code releases",
    card="INT4 values with one BF16 scale per group",
    element=format.INT4,
    block=32,
    groups=(32, 64, 128),
    tensors=(
        Part("weight_packed", "I32", columns=8),
        Part("weight_scale", "BF16", columns=32),
        Part("weight_shape", "I32", fixed=(2,), also="I64"),
    ),
    encodes=("kimi", "compressed-tensors"),
    reference=lazy("reference.int4:REFERENCE"),
    cpu=lazy("cpu.int4:CODEC"),
    gpu=Gpu(lazy("gpu.decode:INT4"), direct=True),
    declared=(Declared(compressed_tensors.METHOD, _NAME),),
    config_block=_config_block,
    recipe=RecipeKeys(),
    served_as="int4-compressed-tensors",
)
