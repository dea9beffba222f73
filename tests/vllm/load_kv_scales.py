"""Load calibrated KV scales with vLLM's own classes, on the CPU, and record which scale latent attention uses.

    python load_kv_scales.py CASE.json RESULTS.json

CASE.json is a checkpoint without weights, as `checkpoints.planned` returns it. Only its KV scales are loaded, with real
values. A run names the KV cache dtype, the module that the scales are stored under (None: as ModelOpt writes them), and
whether `AutoWeightsLoader` renames them too. vLLM before 0.25 left that to the model.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch

from halfbyte.audit.vllm_load import KV_SCALE, Engine

K, V = 0.37, 0.21
RUNS = {
    "auto": ("auto", None, True),
    "fp8": ("fp8", None, True),
    "bfloat16": ("bfloat16", None, True),
    "as self_attn.attn": ("fp8", "self_attn.attn", True),
    "as self_attn": ("fp8", "self_attn", True),
    "as self_attn.mla_attn.mla_attn": ("fp8", "self_attn.mla_attn.mla_attn", True),
    "renamed once, auto": ("auto", None, False),
    "renamed once, fp8": ("fp8", None, False),
    "renamed once, bfloat16": ("bfloat16", None, False),
}


def stored(name: str, module: str | None) -> tuple[str, torch.Tensor]:
    """Return a KV scale with its value, under the name that a run uses."""
    attention, _, suffix = name.replace(".k_proj.", "|").replace(".v_proj.", "|").partition("|")
    spelled = name if module is None else f"{attention.removesuffix('.self_attn')}.{module}.{suffix}"
    return spelled, torch.tensor(K if suffix == "k_scale" else V, dtype=torch.float32)


def load(engine: Engine, folder: Path, names: list[str], cache: str, module: str | None) -> dict[str, object]:
    """Load the scales of every layer; return each layer's attention scales before and after processing."""
    from vllm.model_executor.layers.attention import MLAAttention

    config, model = engine.config_and_model(folder, device="cpu", kv_cache_dtype=cache)
    model.load_weights(iter([stored(name, module) for name in names]))
    layers = [layer for layer in model.modules() if isinstance(layer, MLAAttention)]
    parameters = [[layer.k_scale.item(), layer.v_scale.item()] for layer in layers]
    with engine.current(config):
        for layer in layers:
            layer.quant_method.process_weights_after_loading(layer)
    used = [[layer._k_scale.item(), layer._v_scale.item(), layer._k_scale_float] for layer in layers]
    return {"cache": [layer.kv_cache_dtype for layer in layers], "parameters": parameters, "used": used}


def main() -> None:
    case = json.loads(Path(sys.argv[1]).read_text())
    names = [name for name, *_ in case["tensors"] if KV_SCALE.search(name)]
    engine, results = Engine(), {}
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
    from vllm.model_executor.models.utils import WeightsMapper

    renames = QuantizationConfig.__dict__["get_cache_scale_mapper"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(case["config"]))
        (folder / "hf_quant_config.json").write_text(json.dumps(case["modelopt_file"]))
        for name, (cache, module, twice) in RUNS.items():
            QuantizationConfig.get_cache_scale_mapper = renames if twice else staticmethod(WeightsMapper)
            results[name] = load(engine, folder, names, cache, module)
    Path(sys.argv[2]).write_text(json.dumps({"layers": len(names) // 2, "runs": results}))


if __name__ == "__main__":
    main()
