"""Golden checkpoints of NVIDIA ModelOpt with calibration: its export of a small DeepSeek-V3 after a forward pass.

transformers runs the model, ModelOpt measures, quantizes and exports, all on the CPU. One function of ModelOpt is
translated (a Triton kernel, see make_modelopt.py). The record also has intermediate values for tracing differences:
hidden states after every layer, tokens per expert, and amax of every input.
"""

import json
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import calibrated_checkpoint
import checkpoint
import inputs
import make_modelopt
import modelopt.torch.quantization as mtq
import record
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.utils.dataset_utils import create_forward_loop
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

# oneDNN takes AMX where the CPU has it, and sums in another order then. Read at the first product, not at import.
ONEDNN_ISA = "AVX512_CORE_BF16"
SCALARS = ("input_scale", "weight_scale_2", "k_scale", "v_scale")
NOT_ATTENTION = [{"quantizer_name": f"*self_attn*{kind}_quantizer", "enable": False} for kind in ("weight", "input")]


def recipe_of(name: str) -> dict:
    """A recipe included in ModelOpt."""
    from modelopt.recipe import load_recipe  # 0.41 has none

    return load_recipe(f"general/ptq/{name}").quantize.model_dump()


def default_max() -> dict:
    """Every linear layer but the head and the routers, by max; K and V calibrated."""
    return recipe_of("nvfp4_default-kv_fp8")


def mlp_max() -> dict:
    """The same without attention's projections, but with its K and V, as in kimi-k2.6-nvfp4-wafer."""
    config = default_max()
    return config | {"quant_cfg": config["quant_cfg"] + NOT_ATTENTION}


def experts_mse() -> dict:
    """The routed experts alone, by the FP8 scale sweep; K and V cast."""
    return recipe_of("nvfp4_experts_only_mse-kv_fp8_cast")


RECIPES = {"default_max": default_max, "mlp_max": mlp_max, "experts_mse": experts_mse}


class Observed:
    """Values in a model, observed by hooks, separately for padding and real tokens."""

    def __init__(self, model: nn.Module) -> None:
        """Hook every linear layer, the routed experts, K and V, and the output of every decoder layer."""
        self.real = torch.empty(0, dtype=torch.bool)  # of the batch in flight, one for each token
        self.hidden: dict[str, list[torch.Tensor]] = defaultdict(list)
        self.amax: dict[str, dict[str, float | None]] = {}  # None: no token
        self.tokens: dict[str, dict[str, list[int]]] = {}
        self.hooks = [model.register_forward_pre_hook(self.batch, with_kwargs=True)]
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                self.before(module, lambda x, name=name: self.see(name, x.flatten(0, -2)))
            elif name.endswith((".k_bmm_quantizer", ".v_bmm_quantizer")):  # [row, head, position, dimension]
                self.before(module, lambda x, name=name: self.see(name, x.transpose(1, 2).flatten(0, 1)))
            elif name.endswith(".mlp.experts"):
                hook = lambda module, args, name=name: self.experts(name, module, *args[:2])  # noqa: E731
                self.hooks.append(module.register_forward_pre_hook(hook))
        for number, layer in enumerate(model.model.layers):
            keep = lambda _module, _args, out, name=f"layers.{number}": self.hidden[name].append(out)  # noqa: E731
            self.hooks.append(layer.register_forward_hook(keep))

    def before(self, module: nn.Module, see: Callable[[torch.Tensor], None]) -> None:
        """Show `see` every input of a module."""
        self.hooks.append(module.register_forward_pre_hook(lambda _module, args: see(args[0])))

    def batch(self, _module: nn.Module, _args: tuple, keywords: dict) -> None:
        """Record which tokens of the next batch are real."""
        self.real = keywords["attention_mask"].reshape(-1).bool()

    def see(self, name: str, x: torch.Tensor, tokens: torch.Tensor | None = None) -> None:
        """Update amax with one row per token: of all, and of the real ones."""
        real = self.real if tokens is None else self.real[tokens]
        kept = self.amax.setdefault(name, {"all": None, "real": None})
        for key, rows in (("all", x), ("real", x[real])):
            if len(rows):
                kept[key] = max(kept[key] or 0.0, rows.abs().max().item())

    def experts(self, name: str, module: nn.Module, hidden: torch.Tensor, chosen: torch.Tensor) -> None:
        """The same for each routed expert, with the products that transformers computes next."""
        counts = self.tokens.setdefault(name, {key: [0] * module.num_experts for key in ("all", "real")})
        for expert in range(module.num_experts):
            tokens = torch.where((chosen == expert).any(dim=1))[0]
            counts["all"][expert] += len(tokens)
            counts["real"][expert] += int(self.real[tokens].sum())
            rows = hidden[tokens]
            gate, up = nn.functional.linear(rows, module.gate_up_proj[expert]).chunk(2, dim=-1)
            self.see(f"{name}.{expert}.gate_up_proj", rows, tokens)
            self.see(f"{name}.{expert}.down_proj", module.act_fn(gate) * up, tokens)

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self.hooks:
            hook.remove()


def batches() -> DataLoader:
    """The calibration tokens as hf_ptq.py gives them: a dict of tensors for each batch."""
    ids, real = (torch.from_numpy(array) for array in calibrated_checkpoint.tokens())
    rows = [{"input_ids": i, "attention_mask": r} for i, r in zip(ids, real.long(), strict=True)]
    return DataLoader(rows, batch_size=calibrated_checkpoint.BATCH, shuffle=False)


def calibrate(source: Path, target: Path, config: dict) -> tuple[Observed, dict[str, str]]:
    """Load, quantize and export; return the values of the first calibration forward pass, and how it was computed."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval()
    seen: list[Observed] = []

    def forward(model: nn.Module) -> None:
        observed = Observed(model)
        create_forward_loop(dataloader=batches())(model)
        observed.stop()
        seen.append(observed)

    model = mtq.quantize(model, config, forward_loop=forward)
    took = {"attention": model.config._attn_implementation, "experts": model.config._experts_implementation}
    export_hf_checkpoint(model, export_dir=target)
    return seen[0], took


def exported(target: Path) -> dict:
    """The record of one exported checkpoint."""
    tensors = {name: t for path in target.glob("*.safetensors") for name, t in load_file(path).items()}
    scalars = {name: t.item() for name, t in sorted(tensors.items()) if name.rpartition(".")[2] in SCALARS}
    return {
        "hf_quant_config": json.loads((target / "hf_quant_config.json").read_text()),
        "quantization_config": json.loads((target / "config.json").read_text())["quantization_config"],
        "scalars": scalars,  # FP32 values, exact
        "tensors": checkpoint.contents(target),
    }


def chosen_scales(target: Path) -> dict[str, str]:
    """The block scales themselves, as hex: where the sweep has ties, their losses can be compared."""
    found = load_file(next(target.glob("*.safetensors")))
    return {n: t.view(torch.uint8).numpy().tobytes().hex() for n, t in found.items() if n.endswith(".weight_scale")}


def check_definition(scalars: dict[str, float], observed: Observed) -> None:
    """ModelOpt's scales are the amax over all tokens, padding too, and over all experts of a layer."""
    divide = lambda amax, by: (torch.tensor(amax, dtype=torch.float32) / by).item()  # noqa: E731
    for name, value in scalars.items():
        module, _, kind = name.rpartition(".")
        if kind == "input_scale":
            layer, _, rest = module.partition(".experts.")
            first = "down_proj" if rest.endswith("down_proj") else "gate_up_proj"
            peers = [f"{layer}.experts.{e}.{first}" for e in range(calibrated_checkpoint.EXPERTS)] if rest else [module]
            assert value == divide(max(observed.amax[peer]["all"] or 0.0 for peer in peers), 2688.0), name
        elif kind in ("k_scale", "v_scale"):
            quantizer = f"{module.rpartition('.')[0]}.{kind[0]}_bmm_quantizer"
            assert value == divide(observed.amax[quantizer]["all"], 448.0), name


def record_model(storage: str, recipes: tuple[str, ...]) -> dict:
    """Run the recipes on one model; the observed values must be the same in all of them."""
    made: dict = {"recipes": {}}
    seen: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        source = calibrated_checkpoint.write(Path(folder, "source"), storage)
        made["source_sha256"] = checkpoint.sha256(source)
        for recipe in recipes:
            target = Path(folder, recipe)
            observed, took = calibrate(source, target, RECIPES[recipe]())
            made["recipes"][recipe] = exported(target)
            check_definition(made["recipes"][recipe]["scalars"], observed)
            if storage == "int4-decoded" and recipe == "experts_mse":
                made["recipes"][recipe]["weight_scales"] = chosen_scales(target)
            hidden = observed.hidden.items()
            seen.append(
                {
                    "computed_with": took,
                    "hidden_sha256": {n: [inputs.sha256(x.view(torch.int16).numpy()) for x in h] for n, h in hidden},
                    "tokens_per_expert": observed.tokens,
                    "input_amax": observed.amax,
                }
            )
    assert all(other == seen[0] for other in seen)
    return seen[0] | made


def main() -> None:
    """Write the golden checkpoints of the installed version."""
    os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN_ISA
    args = record.arguments(__doc__.splitlines()[0])
    warnings.filterwarnings("ignore")
    tensor_quant.triton_kernel.IS_AVAILABLE = True
    tensor_quant.triton_kernel.static_blockwise_fp4_fake_quant = make_modelopt.fake_quantize_on_cpu
    golden = record.Record("nvidia-modelopt", __file__, ["transformers", "accelerate"])
    bf16 = record_model("bf16", ("mlp_max", "experts_mse", "default_max"))
    int4 = record_model("int4-decoded", ("mlp_max", "experts_mse"))
    facts = golden.provenance(args.wheel) | {
        "onednn_max_cpu_isa": ONEDNN_ISA,
        "threads": torch.get_num_threads(),
        "tokens_sha256": inputs.sha256(*calibrated_checkpoint.tokens()),
        "models": {"bf16": bf16, "int4": int4},
    }
    stem = golden.stem.replace("modelopt-", "modelopt-calibrated-")
    (args.out / f"{stem}.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
