"""Modules and ignore lists for vLLM's matching: every recipe's own, NVIDIA's published ones, and tricky ones.

`PYTHONPATH=tests python tests/unit/plan/vllm_cases.py` prints them for tests/golden/make_vllm_matching.py.
"""

import json
import tempfile
from pathlib import Path

from pico import TOP_LEVEL_CONFIG, write_pico

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.pipeline import plan
from halfbyte.families.model import describe
from halfbyte.plan.quantization_config import quantization_block
from halfbyte.plan.vllm_matching import engine_modules, module_roles, read_block
from halfbyte.recipe.load import load_recipe, recipe_names

# Twelve layers, because 'layers.1' is a part of 'layers.10'. Each family by a kind of pico.
FAMILIES = {"kimi_k25": "int4-k2.6", "deepseek_v3": "bf16", "qwen3_moe": "qwen3-moe"}
METHODS = ("modelopt", "compressed-tensors", "quark", "fp8")
COMPACT = ["*self_attn*", "*shared_experts*", "*.layers.0.*", "*lm_head*", "vision_tower*", "mm_projector*"]
# {P} is what stands before `model.` in a family's names.
TRICKY = [
    [], ["lm_head"], ["{P}lm_head"], ["lm_head*"], ["head"], ["*"], ["re:.*"], ["re:"], ["re:.*lm_head"], ["RE:.*"],
    ["{P}model.layers.1"], ["{P}model.layers.1*"], ["{P}model.layers.1.*"], ["re:{P}model.layers.1"], [".1.mlp"],
    ["mlp*"], ["mlp.gate*"], ["*mlp.gate*"], ["re:.*mlp.gate"], ["re:.*mlp\\.gate$"], ["re:.*mlp.*"], ["mlp"],
    ["self_attn"], ["self_attn*"], ["*self_attn"], ["re:.*self_attn.*"], ["re:self_attn"], ["Model.Layers*"],
    ["{P}model.layers.2.self_attn.q_a_proj"],
    ["{P}model.layers.2.self_attn.q_a_proj", "{P}model.layers.2.self_attn.kv_a_proj_with_mqa"],
    ["{P}model.layers.2.self_attn.fused_qkv_a_proj"], ["re:.*kv_a_proj_with_mqa"], ["re:.*q_a_proj"], ["*q_a_proj"],
    ["{P}model.layers.2.self_attn.q_proj"], ["re:.*[qkv]_proj"], ["re:.*qkv_proj"], ["re:.*(q|k|v)_proj$"],
    ["{P}model.layers.0.mlp.gate_proj"], ["{P}model.layers.0.mlp.gate_proj", "{P}model.layers.0.mlp.up_proj"],
    ["{P}model.layers.0.mlp.gate_up_proj"], ["re:.*gate_proj"], ["re:.*(gate|up)_proj"], ["re:.*gate_up_proj"],
    ["{P}model.layers.2.mlp.shared_experts"], ["{P}model.layers.2.mlp.shared_experts.down_proj"],
    ["{P}model.layers.2.mlp.shared_experts.*"], ["re:.*shared_experts.*"], ["shared_experts"], ["experts"],
    ["{P}model.layers.2.mlp.experts"], ["{P}model.layers.2.mlp.experts*"], ["{P}model.layers.2.mlp.experts.*"],
    ["{P}model.layers.2.mlp.experts.1.up_proj"], ["{P}model.layers.2.mlp.experts.0.up_proj"],
    ["{P}model.layers.2.mlp.experts.0.gate_proj", "{P}model.layers.2.mlp.experts.0.up_proj",
     "{P}model.layers.2.mlp.experts.0.down_proj"],
    ["re:.*experts"], ["re:.*experts.*"], ["re:.*experts\\.0\\..*"], ["re:.*experts\\.1\\..*"], ["re:.*down_proj"],
    ["mm_projector.proj.0"], ["mm_projector.proj.0*"], ["mm_projector*"], ["re:mm_projector.*"], ["*proj*"],
    ["vision_tower"], ["vision_tower*"], ["re:vision_tower.*"], ["*[01]*"], ["language_model.layers.3*"],
    ["re:.*\\.(3|4)\\.mlp", "{P}lm_head"],
]  # fmt: skip
# What compressed-tensors' groups may name, with nothing ignored.
TARGETS = [
    ["Linear"], ["linear"], ["RoutedExperts"], ["FusedMoE"], ["ParallelLMHead"], ["LMHead"], ["re:.*experts.*"],
    ["re:.*lm_head"], ["{P}lm_head"], ["re:.*experts\\.1\\..*"], ["re:.*gate_proj"], ["re:.*(gate|up)_proj"],
    ["re:.*gate_up_proj"], ["re:.*self_attn.*"], ["{P}model.layers.2.self_attn.o_proj"], ["re:.*down_proj", "Linear"],
    ["re:.*experts.*(gate|up|down)_proj"], ["{P}model.layers.2.mlp.experts.0.gate_proj"],
]  # fmt: skip


def recipe_lists(kind_folder: Path) -> dict[str, tuple[str, list[str]]]:
    """The method and the list of each recipe that can be planned."""
    found = {}
    for name in recipe_names():
        recipe = load_recipe(name)
        if recipe.quantize is not None and recipe.prune is None:
            block = read_block(quantization_block(recipe.quantize, plan(kind_folder, recipe)))
            found[f"recipe {name}"] = (block.method, list(block.ignore))
    return found


def kind_lists() -> dict[str, tuple[str, list[str]]]:
    """The method and the list of each stored kind's config."""
    blocks = {kind: read_block(config) for kind, config in TOP_LEVEL_CONFIG.items()}
    return {f"kind {kind}": (block.method, list(block.ignore)) for kind, block in blocks.items()}


def fill(patterns, prefix):
    return [pattern.replace("{P}", prefix) for pattern in patterns]


def family_cases(model_type: str, folder: Path) -> dict:
    """All questions about one family."""
    model = describe(open_checkpoint(folder))
    modules = engine_modules(model.family, module_roles(model))
    prefix = "language_model." if model_type == "kimi_k25" else ""
    lists = {method: [] for method in METHODS}
    for method, patterns in [*recipe_lists(folder).values(), *kind_lists().values()]:
        lists[method].append(patterns)
    if model_type == "kimi_k25":
        published = json.loads((Path(__file__).parent / "nvidia_ignore.json").read_text())
        lists["modelopt"] += list(published.values())
    tricky = [fill(patterns, prefix) for patterns in [COMPACT, *TRICKY]]
    unique = {
        method: [json.loads(t) for t in dict.fromkeys(map(json.dumps, lists[method] + tricky))] for method in METHODS
    }
    return {
        "modules": [[module.name, module.kind, module.role, list(module.parts)] for module in modules],
        "lists": unique,
        "targets": [fill(patterns, prefix) for patterns in TARGETS],
    }


def cases() -> dict:
    """All questions."""
    found = {}
    for model_type, kind in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[model_type] = family_cases(model_type, write_pico(Path(folder), kind, layers=12, experts=3))
    return found


if __name__ == "__main__":
    print(json.dumps(cases()))
