"""Golden vectors of NVIDIA ModelOpt: NVFP4 by max and, from 0.47 on, by MSE with the FP8 scale sweep.

ModelOpt calibrates and exports; this script only builds the linear layers around the weights. One
function of it cannot run without CUDA and is translated below.
"""

import warnings
from collections.abc import Mapping

import inputs
import modelopt.torch.quantization as mtq
import numpy as np
import record
import torch
from modelopt.torch.export.quant_utils import preprocess_linear_fusion
from modelopt.torch.export.unified_export_hf import _export_quantized_weight
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor import NVFP4QTensor, nvfp4_tensor
from torch import nn

EXPORTED = ("weight", "weight_scale", "weight_scale_2")


def fake_quantize_on_cpu(x, amax, global_amax, quantize_block_scales, fp8_max, out_dtype):
    """Stand in for static_blockwise_fp4_fake_quant, a Triton kernel (fp4_kernel.py, nvfp4_quant.py).

    The block scales come from ModelOpt's own scaled_e4m3_impl, as in its compute_fp4_scales.
    """
    assert quantize_block_scales and fp8_max == 448.0
    scale = tensor_quant.scaled_e4m3_impl(amax.float() / 6.0, global_amax.float() / 6.0)
    scale = scale.reshape(-1, 1)
    usable = scale.isfinite() & (scale != 0)
    safe = torch.where(usable, scale, torch.ones_like(scale))
    y = x.float().reshape(scale.shape[0], -1).abs() / safe
    magnitude = torch.full_like(y, 6.0)
    magnitude[y <= 5.0] = 4.0
    magnitude[y < 3.5] = 3.0
    magnitude[y <= 2.5] = 2.0
    magnitude[y < 1.75] = 1.5
    magnitude[y <= 1.25] = 1.0
    magnitude[y < 0.75] = 0.5
    magnitude[y <= 0.25] = 0.0
    value = (magnitude * safe).reshape(x.shape)
    value = torch.where(x >= 0, value, -value)
    zero = (scale == 0).expand(-1, y.shape[1]).reshape(x.shape)
    return torch.where(zero, torch.zeros_like(value), value).to(out_dtype or x.dtype)


def quantized_layers(weights: Mapping[str, np.ndarray], config: dict) -> dict[str, nn.Module]:
    """Linear layers holding `weights`, calibrated by ModelOpt; weights need no data."""
    layers = nn.ModuleDict()
    for name, patterns in weights.items():
        rows, columns = patterns.shape
        layers[name] = nn.Linear(columns, rows, bias=False, dtype=torch.bfloat16)
        layers[name].weight.data = record.bf16_tensor(patterns)
    quantized = mtq.quantize(nn.ModuleDict({"mlp": layers}), config, forward_loop=None)["mlp"]
    return {name: quantized[name] for name in weights}  # 0.47 adds a module for shared state


def dequantize(layer: nn.Module) -> torch.Tensor:
    """ModelOpt's own decoding of its export, in BF16."""
    rows, columns = layer.weight.shape
    packed = NVFP4QTensor(torch.Size((rows, 2 * columns)), torch.bfloat16, layer.weight.data)
    scales = {"scale": layer.weight_scale, "double_scale": layer.weight_scale_2, "block_sizes": {-1: 16}}
    return packed.dequantize(torch.bfloat16, **scales)


def export(weights: Mapping[str, np.ndarray], config: dict) -> dict[str, torch.Tensor]:
    """The tensors of a unified checkpoint; several weights share one scale, like fused ones."""
    layers = quantized_layers(weights, config)
    if len(layers) > 1:
        preprocess_linear_fusion(list(layers.values()))
    outputs = {}
    for name, layer in layers.items():
        _export_quantized_weight(layer, torch.bfloat16)
        prefix = f"{name.removesuffix('_proj')}." if len(layers) > 1 else ""
        outputs |= {prefix + key: getattr(layer, key).data for key in EXPORTED}
        outputs[prefix + "dequantized"] = dequantize(layer)
    return outputs


def tensor_scales_of_mantissas() -> torch.Tensor:
    """amax / 2688 for the 128 BF16 numbers in [1, 2): an IEEE division on the CPU."""
    patterns = np.arange(0x3F80, 0x4000, dtype=np.uint16)
    scales = [NVFP4QTensor.get_weights_scaling_factor_2(record.bf16_tensor(patterns[i : i + 1])) for i in range(128)]
    return torch.stack([scale.reshape(()) for scale in scales])


def record_recipe(golden: record.Record, recipe: str, cases: Mapping[str, tuple], config: dict, **keep) -> None:
    """Run one recipe over single weights and over fused pairs."""
    for case, sources in cases.items():
        names = ("down_proj",) if len(sources) == 1 else ("gate_proj", "up_proj")
        weights = dict(zip(names, sources, strict=True))
        prefix = recipe if len(sources) == 1 else f"{recipe}_fused"
        golden.case(f"{prefix}/{case}", sources, lambda w=weights: export(w, config), **keep)


def main() -> None:
    """Write the golden vectors of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    warnings.filterwarnings("ignore")
    nvfp4_tensor.fp4_compatible = lambda: False  # 0.41 asks the GPU even when the tensor is on the CPU
    golden = record.Record("nvidia-modelopt", __file__)
    has_sweep = hasattr(mtq, "NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG")
    # Dequantized weights are the bulk: stored once, for the newest version's `max`, and hashed elsewhere.
    dequantized = ("dequantized", "gate.dequantized", "up.dequantized")
    small = {case: (weight,) for case, weight in inputs.bf16_cases().items()} | inputs.fused_cases()

    golden.keep("scalar/weight_scale_2", tensor_scales_of_mantissas())
    bulk = () if has_sweep else dequantized
    record_recipe(golden, "nvfp4_max", small, mtq.NVFP4_DEFAULT_CFG, hash_only=bulk)
    for case in ("large_gaussian", "large_int4_grid"):
        large = {case: (inputs.large_cases()[case](),)}
        record_recipe(golden, "nvfp4_max", large, mtq.NVFP4_DEFAULT_CFG, hash_only="*")
    if has_sweep:
        tensor_quant.triton_kernel.IS_AVAILABLE = True
        tensor_quant.triton_kernel.static_blockwise_fp4_fake_quant = fake_quantize_on_cpu
        cases = small | {case: (weight,) for case, weight in inputs.mse_cases().items()}
        record_recipe(golden, "nvfp4_mse", cases, mtq.NVFP4_W4A4_WEIGHT_MSE_FP8_SWEEP_CFG, hash_only=dequantized)
    golden.write(args.out, args.wheel)


if __name__ == "__main__":
    main()
