"""Golden vectors of AMD Quark: MXFP4 of BF16 weights and of INT4 checkpoints.

The cases are laid out as a checkpoint, one layer each, and Quark's file-to-file quantization does the
rest on the CPU. Its C++ kernel is built at import, which takes a few minutes the first time.
"""

import json
import sys
import tempfile
import types
from pathlib import Path

import inputs
import numpy as np
import record
import torch
from safetensors.torch import load_file, save_file


class Removed(types.ModuleType):
    """A module that torch no longer has; any name can be imported from it, none can be used."""

    def __getattr__(self, name: str) -> None:
        """Refuse only the names Python's import machinery probes."""
        if name.startswith("__"):
            raise AttributeError(name)


# Quark 0.11 imports its graph-mode quantizer, which needs what torch 2.13 has dropped. Weights in
# eager mode never reach that code.
for removed in ("pt2e", "pt2e.utils", "pt2e.prepare", "quantizer"):
    sys.modules.setdefault(f"torch.ao.quantization.{removed}", Removed(removed))

from quark.torch import ModelQuantizer  # noqa: E402
from quark.torch.kernel.hw_emulation.extensions import kernel_ext  # noqa: E402
from quark.torch.quantization.config.config import OCP_MXFP4Spec, QConfig, QLayerConfig  # noqa: E402

BF16_CONFIG = {"torch_dtype": "bfloat16"}
INT4_CONFIG = BF16_CONFIG | {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": [],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True},
            }
        },
    }
}


def quantize_checkpoint(tensors: dict[str, torch.Tensor], config: dict) -> dict[str, torch.Tensor]:
    """Quark's output for a checkpoint with `tensors`."""
    weight = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()
    quantizer = ModelQuantizer(QConfig(global_quant_config=QLayerConfig(weight=weight)))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.mkdir()
        save_file(tensors, source / "model.safetensors")
        (source / "config.json").write_text(json.dumps(config))
        quantizer.direct_quantize_checkpoint(str(source), str(target), device="cpu")
        torch.set_default_dtype(torch.float32)  # Quark sets it and leaves it
        return load_file(target / "model.safetensors")


def int4_layer(packed: np.ndarray, scale: np.ndarray) -> dict[str, torch.Tensor]:
    """An INT4 layer as compressed-tensors stores it."""
    return {
        "weight_packed": torch.from_numpy(packed),
        "weight_scale": record.bf16_tensor(scale),
        "weight_shape": torch.tensor([packed.shape[0], packed.shape[1] * 8], dtype=torch.int32),
    }


def record_recipe(golden: record.Record, recipe: str, cases: dict, *, hash_only: str = "") -> None:
    """Quantize all cases as one checkpoint; a case is a BF16 weight or an INT4 pair."""
    is_int4 = recipe == "mxfp4_from_int4"
    tensors = {}
    for case, source in cases.items():
        layer = int4_layer(*source) if is_int4 else {"weight": record.bf16_tensor(source)}
        tensors |= {f"layers.{case}.{name}": tensor for name, tensor in layer.items()}
    written = quantize_checkpoint(tensors, INT4_CONFIG if is_int4 else BF16_CONFIG)
    for case, source in cases.items():
        outputs = {name: written[f"layers.{case}.{name}"] for name in ("weight", "weight_scale")}
        golden.case(f"{recipe}/{case}", source if is_int4 else (source,), lambda o=outputs: o, hash_only=hash_only)


def main() -> None:
    """Write the golden vectors of the installed version."""
    args = record.arguments(__doc__.splitlines()[0])
    if kernel_ext is None:
        raise SystemExit("Quark's C++ kernel did not build: a C++ compiler and ninja are needed")
    golden = record.Record("amd-quark", __file__, ["compressed-tensors", "transformers"])
    record_recipe(golden, "mxfp4", inputs.bf16_cases())
    record_recipe(golden, "mxfp4_from_int4", inputs.int4_cases())
    large = inputs.large_cases()
    for case in ("large_gaussian", "large_int4_grid"):
        record_recipe(golden, "mxfp4", {case: large[case]()}, hash_only="*")
    record_recipe(golden, "mxfp4_from_int4", {"large_int4": large["large_int4"]()}, hash_only="*")
    golden.write(args.out, args.wheel)


if __name__ == "__main__":
    main()
