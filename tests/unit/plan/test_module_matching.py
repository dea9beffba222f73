"""The matching rules of vLLM's loaders, compared with vLLM's own results for NVIDIA's published lists."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from halfbyte.families.kimi_k25.geometry import KIMI_K26, layer_linears, projector, vision_tower
from halfbyte.families.registry import family_of
from halfbyte.plan.vllm_matching import (
    Block,
    broken_patterns,
    engine_modules,
    quantizes,
    read_block,
)
from halfbyte.recipe.load import load_recipe

LISTS = json.loads((Path(__file__).parent / "nvidia_ignore.json").read_text())
COMPACT = ["*self_attn*", "*shared_experts*", "*.layers.0.*", "*lm_head*", "vision_tower*", "mm_projector*"]
LAYERS = "language_model.model.layers"
ARCHITECTURE = family_of({"model_type": "kimi_k25"})


def kimi_modules():
    """The modules that vLLM builds for Kimi-K2.6, with three experts instead of 384."""
    geometry = replace(KIMI_K26, experts=3)
    roles = {linear.module: linear.role for layer in range(61) for linear in layer_linears(geometry, layer)}
    roles["language_model.lm_head"] = "head"
    for role, specs in (("projector", projector(geometry)), ("vision", vision_tower(geometry))):
        roles |= {
            s.name.removesuffix(".weight"): role for s in specs if s.name.endswith(".weight") and len(s.shape) == 2
        }
    return engine_modules(ARCHITECTURE, roles)


MODULES = kimi_modules()


def quantized(method, ignore, targets=("Linear",)):
    """Return what an engine quantizes, by role and last name; None counts errors."""
    block = Block(method, "", tuple(ignore), targets, static_inputs=False)
    verdicts = [(module, quantizes(module, block)) for module in MODULES]
    assert not [module.name for module, verdict in verdicts if verdict is None]
    return Counter((module.role, module.name.rpartition(".")[2]) for module, verdict in verdicts if verdict)


EXPERTS = {("routed_experts", "experts"): 60}


def test_modules_are_named_as_vllm_names_them():
    names = {module.name for module in MODULES}
    assert f"{LAYERS}.0.mlp.gate_up_proj" in names
    assert f"{LAYERS}.7.self_attn.fused_qkv_a_proj" in names
    assert f"{LAYERS}.7.mlp.shared_experts.gate_up_proj" in names
    assert f"{LAYERS}.7.mlp.experts" in names
    assert not any(name.endswith(("gate_proj", "kv_a_proj_with_mqa")) for name in names)


def test_the_list_of_nvidia_k25_quantizes_shared_experts_and_the_dense_layer_too():
    assert quantized("modelopt", LISTS["K2.5"]) == {
        **EXPERTS,
        ("shared_experts", "gate_up_proj"): 60,
        ("shared_experts", "down_proj"): 60,
        ("dense_mlp", "gate_up_proj"): 1,
        ("dense_mlp", "down_proj"): 1,
    }


@pytest.mark.parametrize("ignore", [LISTS["K2.6"], LISTS["K2.7-Code"], COMPACT], ids=["K2.6", "K2.7-Code", "compact"])
def test_these_lists_quantize_exactly_the_experts(ignore):
    assert quantized("modelopt", ignore) == EXPERTS


def test_without_the_projector_in_the_list_it_is_taken_for_quantized():
    found = quantized("modelopt", [pattern for pattern in LISTS["K2.6"] if "mm_projector" not in pattern])
    assert found == {**EXPERTS, ("projector", "0"): 1, ("projector", "2"): 1}


def test_modelopt_patterns_are_substrings():
    base = LISTS["K2.6"]
    assert quantized("modelopt", [*base, f"{LAYERS}.1*"])["routed_experts", "experts"] == 49  # 1 and 10 to 19
    assert quantized("modelopt", [*base, f"{LAYERS}.6"])["routed_experts", "experts"] == 58  # 6 and 60
    assert quantized("modelopt", [*base, f"{LAYERS}.6.*"])["routed_experts", "experts"] == 59


def test_one_expert_in_modelopts_list_takes_all_of_its_layer_along():
    found = quantized("modelopt", [*LISTS["K2.6"], f"{LAYERS}.5.mlp.experts.2.up_proj"])
    assert found["routed_experts", "experts"] == 59


def test_compressed_tensors_reads_no_globs_and_no_bare_names():
    everything = quantized("compressed-tensors", [])
    assert everything["routed_experts", "experts"] == 60
    assert not {"vision", "projector", "head"} & {role for role, _ in everything}
    assert quantized("compressed-tensors", COMPACT) == everything
    assert quantized("compressed-tensors", ["re:.*self_attn.*"])[("attention", "o_proj")] == 0
    head = quantized("compressed-tensors", ["lm_head"], targets=("Linear", "re:.*lm_head"))
    assert head["head", "lm_head"] == 1


def test_fused_parts_must_agree():
    fused = next(module for module in MODULES if module.name == f"{LAYERS}.3.self_attn.fused_qkv_a_proj")
    for method in ("compressed-tensors", "quark", "modelopt"):
        block = Block(method, "", (f"{LAYERS}.3.self_attn.q_a_proj",), ("Linear",), static_inputs=False)
        assert quantizes(fused, block) is None, method
        assert quantizes(fused, replace(block, ignore=fused.parts)) is False, method
        assert quantizes(fused, replace(block, ignore=(fused.name,))) is False, method


def test_the_first_expert_decides_for_compressed_tensors_and_any_for_quark():
    experts = next(module for module in MODULES if module.name == f"{LAYERS}.9.mlp.experts")
    others = tuple(part for part in experts.parts if ".experts.0." not in part)
    block = Block("compressed-tensors", "", others, ("Linear",), static_inputs=False)
    assert quantizes(experts, block) is True
    assert quantizes(experts, replace(block, ignore=experts.parts[:3])) is False
    assert quantizes(experts, replace(block, ignore=experts.parts[:1])) is None
    assert quantizes(experts, replace(block, method="quark", ignore=others[:1])) is False


@pytest.mark.parametrize("name", ["kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4a16", "kimi-k2.6-fp8-reference"])
def test_the_shipped_lists_quantize_exactly_the_experts(name):
    quantize = load_recipe(name).quantize
    method = "quark" if quantize.format == "mxfp4" else "compressed-tensors"
    assert quantized(method, quantize.config.ignore_patterns) == EXPERTS


def test_quark_would_quantize_vision_and_projector():
    patterns = [p for p in load_recipe("kimi-k2.6-mxfp4-wafer").quantize.config.ignore_patterns if "_tower" not in p]
    assert {role for role, _ in quantized("quark", patterns)} == {"routed_experts", "vision"}


def test_broken_patterns_are_named():
    assert broken_patterns(["lm_head", "re:.*(", "re:fine.*", "*glob"]) == ["re:.*("]


def test_blocks_are_read_from_both_of_modelopts_files():
    legacy = read_block({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["a*"], "group_size": 16}})
    assert (legacy.method, legacy.format, legacy.ignore, legacy.static_inputs) == ("modelopt", "NVFP4", ("a*",), True)
    weights_only = {"targets": ["Linear"], "weights": {}, "input_activations": None}
    block = read_block({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"g": weights_only}})
    assert not block.static_inputs
