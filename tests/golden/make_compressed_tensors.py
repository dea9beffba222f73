"""Golden vectors of compressed-tensors: INT4, NVFP4, MXFP4 and FP8, written and read back.

The library initializes a linear layer for a scheme, computes the scales and compresses the layer.
Between these steps it expects an observer's minima and maxima; here they are plain amin and amax.
"""

from collections.abc import Mapping

import inputs
import numpy as np
import record
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.initialize import initialize_module_for_quantization
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from torch import nn

READABLE_VERSION = "0.20.0"  # decoded weights are the bulk: stored for this version, hashed for others


def int4_scheme(group_size: int) -> QuantizationScheme:
    """Symmetric INT4 weights in groups along the input."""
    args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group_size)
    return QuantizationScheme(targets=["Linear"], weights=args)


# recipe: (format in the registry, scheme)
RECIPES: Mapping[str, tuple[str, QuantizationScheme]] = {
    "int4_pack": ("pack-quantized", int4_scheme(32)),
    "int4_pack_g64": ("pack-quantized", int4_scheme(64)),
    "int4_pack_g128": ("pack-quantized", int4_scheme(128)),
    "nvfp4": ("nvfp4-pack-quantized", preset_name_to_scheme("NVFP4A16", ["Linear"])),
    "mxfp4": ("mxfp4-pack-quantized", preset_name_to_scheme("MXFP4A16", ["Linear"])),
    "fp8_channel": ("float-quantized", preset_name_to_scheme("FP8_DYNAMIC", ["Linear"])),
}
DECODED = ("nvfp4", "mxfp4")


def observe(weight: torch.Tensor, args: QuantizationArgs, global_scale: torch.Tensor | None) -> torch.Tensor:
    """The scales of a weight's rows or groups."""
    grouped = weight.unflatten(-1, (-1, args.group_size)) if args.group_size else weight.unsqueeze(1)
    scale, _ = calculate_qparams(grouped.amin(dim=-1), grouped.amax(dim=-1), args, global_scale=global_scale)
    return scale


def global_scale_of(weights: list[torch.Tensor]) -> torch.Tensor:
    """One global scale for weights that an engine fuses."""
    return generate_gparam(torch.stack([w.min() for w in weights]).min(), torch.stack([w.max() for w in weights]).max())


def global_scales_of_mantissas() -> torch.Tensor:
    """2688 / amax for the 128 BF16 numbers in [1, 2), as the library rounds it: bf16(bf16(1 / amax) * 2688)."""
    ones = record.bf16_tensor(np.arange(0x3F80, 0x4000, dtype=np.uint16))
    return torch.cat([global_scale_of([ones[i]]) for i in range(128)])


def compress(recipe: str, weight: torch.Tensor, global_scale: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors compressed-tensors stores for one linear layer, and their decoded values."""
    name, scheme = RECIPES[recipe]
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    layer.weight.data = weight
    initialize_module_for_quantization(layer, scheme, force_zero_point=False)
    if global_scale is not None:
        layer.weight_global_scale.data.copy_(global_scale)
    layer.weight_scale.data.copy_(observe(weight, scheme.weights, global_scale))
    compressor = BaseCompressor.get_value_from_registry(name)
    compressor.compress_module(layer)
    stored = {key: value.data for key, value in layer.state_dict().items()}
    if recipe not in DECODED:
        return stored
    return stored | {"decoded": compressor.decompress(stored, scheme)["weight"].data}


def compress_one(recipe: str, patterns: np.ndarray) -> dict[str, torch.Tensor]:
    """Compress a single weight."""
    weight = record.bf16_tensor(patterns)
    return compress(recipe, weight, global_scale_of([weight]) if recipe == "nvfp4" else None)


def compress_pair(gate: np.ndarray, up: np.ndarray) -> dict[str, torch.Tensor]:
    """Compress gate and up to NVFP4 with one global scale."""
    weights = {"gate": record.bf16_tensor(gate), "up": record.bf16_tensor(up)}
    shared = global_scale_of(list(weights.values()))
    outputs = {}
    for name, weight in weights.items():
        outputs |= {f"{name}.{key}": value for key, value in compress("nvfp4", weight, shared).items()}
    return outputs


def decode_int4(packed: np.ndarray, scale: np.ndarray) -> dict[str, torch.Tensor]:
    """Decompress INT4 groups of 32."""
    name, scheme = RECIPES["int4_pack"]
    stored = {
        "weight_packed": torch.from_numpy(packed),
        "weight_scale": record.bf16_tensor(scale),
        "weight_shape": torch.tensor([packed.shape[0], packed.shape[1] * 8], dtype=torch.int32),
    }
    return {"decoded": BaseCompressor.get_value_from_registry(name).decompress(stored, scheme)["weight"]}


def decode_fp8_blocks(codes: np.ndarray, scale: np.ndarray) -> dict[str, torch.Tensor]:
    """Dequantize FP8 in blocks of 128x128."""
    weight = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    tensors = {"layer.weight": weight, "layer.weight_scale_inv": torch.from_numpy(scale)}
    return {"decoded": FP8BlockDequantizer(targets=["re:.*"]).process(tensors)["layer.weight"]}


def record_large(golden: record.Record) -> None:
    """Hash the results for the large matrices."""
    for case in ("large_gaussian", "large_int4_grid"):
        weight = inputs.large_cases()[case]()
        for recipe in RECIPES:
            golden.case(f"{recipe}/{case}", (weight,), lambda r=recipe, w=weight: compress_one(r, w), hash_only="*")
    source = inputs.large_int4()
    golden.case("int4_decode/large_int4", source, lambda: decode_int4(*source), hash_only="*")


def main() -> None:
    """Write the golden vectors of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    golden = record.Record("compressed-tensors", __file__)
    bulk = () if golden.version == READABLE_VERSION else ("decoded", "gate.decoded", "up.decoded")
    golden.keep("scalar/weight_global_scale", global_scales_of_mantissas())
    for recipe, (_, scheme) in RECIPES.items():
        for case, w in inputs.bf16_cases().items():
            if w.shape[1] % (scheme.weights.group_size or 1) == 0:
                golden.case(f"{recipe}/{case}", (w,), lambda r=recipe, w=w: compress_one(r, w), hash_only=bulk)
    for case, pair in inputs.fused_cases().items():
        golden.case(f"nvfp4_fused/{case}", pair, lambda p=pair: compress_pair(*p), hash_only=bulk)
    for case, source in inputs.int4_cases().items():
        golden.case(f"int4_decode/{case}", source, lambda s=source: decode_int4(*s), hash_only=bulk)
    for case, source in inputs.fp8_block_cases().items():
        golden.case(f"fp8_block/{case}", source, lambda s=source: decode_fp8_blocks(*s), hash_only=bulk)
    record_large(golden)
    golden.write(args.out, args.wheel)


if __name__ == "__main__":
    main()
