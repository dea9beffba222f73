"""Golden checkpoint of ModelOpt 0.41 with calibration: one input scale per expert, where 0.47 has one per layer.

0.41 needs transformers 4, which has a module for each expert. Four adjustments make its results comparable with 0.47's:

- the experts' outputs are summed as in transformers 5 (in BF16, 4 sums in FP32);
- the router's correction bias stays F32 (transformers 4 rounds it to BF16 when it loads the model);
- the attention mask is passed (0.41's own data loader passes token ids only, so that padding is attended to);
- the weights of experts without tokens are passed to their quantizers (0.41 cannot export them otherwise).
"""

import copy
import json
import os
import tempfile
import warnings
from pathlib import Path

import calibrated_checkpoint
import checkpoint
import inputs
import modelopt.torch.quantization as mtq
import record
import torch
from make_calibrated_modelopt import ONEDNN_ISA, batches, exported
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import nvfp4_tensor
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE


def sum_of_experts(self: nn.Module, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Replace DeepseekV3MoE.moe: expert by expert, each product rounded to BF16 before it is added."""
    total = torch.zeros_like(hidden)
    for number, expert in enumerate(self.experts):
        place, tokens = torch.where((chosen == number).T)
        if len(tokens):
            scaled = expert(hidden[tokens]) * weights[tokens, place, None]
            total.index_add_(0, tokens, scaled.to(total.dtype))
    return total


def mlp_max() -> dict:
    """As make_calibrated_modelopt.mlp_max, in 0.41's terms: NVFP4_DEFAULT_CFG and FP8_KV_CFG, not attention."""
    config = copy.deepcopy(mtq.NVFP4_DEFAULT_CFG)
    config["quant_cfg"] |= {key: value for key, value in mtq.FP8_KV_CFG["quant_cfg"].items() if key != "default"}
    config["quant_cfg"] |= {f"*self_attn*{kind}_quantizer": {"enable": False} for kind in ("weight", "input")}
    return config


def load(source: Path) -> nn.Module:
    """The model, with the checkpoint's correction bias."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    biases = {n: t for n, t in load_file(source / "model.safetensors").items() if n.endswith("e_score_correction_bias")}
    for name, bias in biases.items():
        model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = bias
    return model


def calibrate(source: Path, target: Path) -> dict[str, list[str]]:
    """Load, quantize and export; the hashes of the hidden states after every layer, for each batch."""
    hashes: dict[str, list[str]] = {}
    reached: set[str] = set()

    def keep(layer: str, out: torch.Tensor | tuple) -> None:
        states = out[0] if isinstance(out, tuple) else out
        hashes.setdefault(layer, []).append(inputs.sha256(states.view(torch.int16).numpy()))

    def forward(model: nn.Module) -> None:
        linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        hooks = [m.register_forward_pre_hook(lambda _m, _args, n=n: reached.add(n)) for n, m in linears.items()]
        for number, layer in enumerate(model.model.layers):
            hooks.append(layer.register_forward_hook(lambda _m, _args, out, n=f"layers.{number}": keep(n, out)))
        with torch.no_grad():
            for batch in batches():
                model(**batch, use_cache=False)
            for name in linears.keys() - reached:
                linears[name].weight_quantizer(linears[name].weight)
        for hook in hooks:
            hook.remove()

    model = mtq.quantize(load(source), mlp_max(), forward_loop=forward)
    export_hf_checkpoint(model, export_dir=target)
    return hashes


def main() -> None:
    """Write the golden checkpoint of ModelOpt 0.41."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN_ISA
    args = record.arguments(__doc__.splitlines()[0])
    warnings.filterwarnings("ignore")
    nvfp4_tensor.fp4_compatible = lambda: False  # 0.41 asks the GPU even when the tensor is on the CPU
    DeepseekV3MoE.moe = sum_of_experts
    golden = record.Record("nvidia-modelopt", __file__, ["transformers", "accelerate"])
    with tempfile.TemporaryDirectory() as folder:
        source = calibrated_checkpoint.write(Path(folder, "source"), "bf16")
        hashes = calibrate(source, Path(folder, "target"))
        model = {
            "source_sha256": checkpoint.sha256(source),
            "hidden_sha256": hashes,
            "recipes": {"mlp_max": exported(Path(folder, "target"))},
        }
    facts = golden.provenance(args.wheel) | {
        "onednn_max_cpu_isa": ONEDNN_ISA,
        "tokens_sha256": inputs.sha256(*calibrated_checkpoint.tokens()),
        "models": {"bf16": model},
    }
    stem = golden.stem.replace("modelopt-", "modelopt-calibrated-")
    (args.out / f"{stem}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
