"""The modules that vLLM's loaders quantize for given ignore lists. Runs in an environment with vLLM.

    PYTHONPATH=tests python tests/unit/plan/vllm_cases.py > cases.json                     with halfbyte
    python tests/golden/make_vllm_matching.py cases.json tests/golden/vllm_matching.json    with vLLM

A verdict is a letter for each module: q quantized, i ignored, ! rejected because fused parts disagree.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import torch
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer as ct_ignores
from vllm.model_executor.layers.quantization.fp8 import Fp8Config
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.layers.quantization.quark.utils import should_ignore_layer as quark_ignores
from vllm.model_executor.layers.quantization.utils.quant_utils import is_layer_skipped
from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM
from vllm.model_executor.models.kimi_k25 import KimiK25ForConditionalGeneration
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM
from vllm.model_executor.models.utils import WeightsMapper

# The mappings that `initialize_model` hands to the quantization config; DeepSeek's model adds the second in __init__.
MLA = {**DeepseekV2ForCausalLM.packed_modules_mapping, "fused_qkv_a_proj": ["q_a_proj", "kv_a_proj_with_mqa"]}
FUSED = {"kimi_k25": MLA, "deepseek_v3": MLA, "qwen3_moe": Qwen3MoeForCausalLM.packed_modules_mapping}
MAPPERS = {
    "kimi_k25": KimiK25ForConditionalGeneration.hf_to_vllm_mapper,
    "deepseek_v3": getattr(DeepseekV2ForCausalLM, "hf_to_vllm_mapper", None),
    "qwen3_moe": Qwen3MoeForCausalLM.hf_to_vllm_mapper,
}
# Classes are matched by their names; building the real ones would need a distributed environment.
LAYERS = {
    kind: type(name, (torch.nn.Module,), {})()
    for kind, name in (("linear", "ColumnParallelLinear"), ("experts", "RoutedExperts"), ("head", "ParallelLMHead"))
}
WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}


class Loader:
    """One family's quantization config as vLLM prepares it before it builds the model."""

    def __init__(self, family: str, method: str, ignore: list[str], targets: list[str]) -> None:
        self.method, self.fused = method, FUSED[family]
        mapper = MAPPERS[family].get_rename_mapper() if MAPPERS[family] is not None else None
        self.mapper = mapper or WeightsMapper()
        self.config = self.make(ignore, targets)
        if self.config is not None:
            self.config.packed_modules_mapping = self.fused
            if mapper is not None:
                self.config.apply_vllm_mapper(mapper)
        self.ignore = self.mapper.apply_list(ignore) if mapper is not None else ignore  # as Quark's config does it

    def make(self, ignore: list[str], targets: list[str]):
        """Create the config as from a config.json; Quark's needs only the list."""
        if self.method == "modelopt":
            group = {"weights": {"group_size": 16}, "input_activations": {}, "targets": ["Linear"]}
            block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore, "config_groups": {"g": group}}
            return ModelOptNvFp4Config.from_config(block)
        if self.method == "compressed-tensors":
            group = {"weights": WEIGHTS, "input_activations": None, "targets": targets}
            block = {"format": "nvfp4-pack-quantized", "quant_method": "compressed-tensors", "ignore": ignore}
            return CompressedTensorsConfig.from_config({**block, "config_groups": {"group_0": group}})
        if self.method == "fp8":
            return Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", ignored_layers=ignore)
        return None

    def verdict(self, name: str, kind: str) -> str:
        """Return whether the list excludes a module, given by its checkpoint name."""
        (name,) = self.mapper.apply_list([name])
        try:
            return "i" if self.ignores(name, kind) else "q"
        except ValueError:
            return "!"

    def ignores(self, name: str, kind: str) -> bool:
        if self.method == "modelopt":
            return self.config.is_layer_excluded(name)
        if self.method == "fp8":
            mode = self.config.ignored_layers_match_mode
            return is_layer_skipped(name, self.config.ignored_layers, self.fused, match_mode=mode)
        if self.method == "quark":
            return quark_ignores(name, self.ignore, self.fused, check_children=kind == "experts")
        if kind == "experts":
            found = {ct_ignores(part, self.config.ignore, self.fused) for part in first_expert(name)}
            if len(found) > 1:
                raise ValueError(name)
            return found.pop()
        return ct_ignores(name, self.config.ignore, self.fused)

    def scheme(self, name: str, kind: str) -> str:
        """Return whether compressed-tensors finds a scheme for a module."""
        (name,) = self.mapper.apply_list([name])
        if kind == "experts":
            self.config._add_fused_moe_to_target_scheme_map()
        names = first_expert(name) if kind == "experts" else [name]
        try:
            found = [self.config.get_scheme_dict(LAYERS[kind], part) is not None for part in names]
        except ValueError:
            return "!"
        return "!" if len(set(found)) > 1 else "q" if found[0] else "i"


def first_expert(name: str) -> list[str]:
    """The names by which compressed-tensors decides on all experts."""
    return [f"{name}.0.{part}" for part in ("gate_proj", "up_proj", "down_proj")]


def answer(family: str, asked: dict) -> dict:
    """Run vLLM's functions on all cases of one family."""
    modules = [(name, kind) for name, kind, _, _ in asked["modules"]]
    text = [(name, kind) for name, kind, role, _ in asked["modules"] if role not in ("vision", "projector")]
    verdicts = {}
    for method, lists in asked["lists"].items():
        loaders = [Loader(family, method, ignore, ["Linear"]) for ignore in lists]
        verdicts[method] = ["".join(loader.verdict(*module) for module in modules) for loader in loaders]
    chosen = [Loader(family, "compressed-tensors", [], targets) for targets in asked["targets"]]
    return {**asked, "verdicts": verdicts, "schemes": ["".join(c.scheme(*module) for module in text) for c in chosen]}


def answers(cases: dict) -> dict:
    """Run vLLM's functions on all cases."""
    release = version("vllm").partition("+")[0]
    return {"vllm": release, "families": {family: answer(family, asked) for family, asked in cases.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    found = answers(json.loads(args.cases.read_text()))
    args.out.write_text(json.dumps(found, separators=(",", ":")).replace('],"', '],\n"') + "\n")


if __name__ == "__main__":
    main()
