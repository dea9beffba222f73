"""vLLM's own config classes, models and loaders accept our output: everything found, nothing left over, nothing empty.

One process examines all checkpoints (`halfbyte.audit.vllm_load`), which documents what it replaces in vLLM and why.
"""

import json
import re
from pathlib import Path

import pytest
from checkpoints import RECIPES, imagined, only_prune, planned, recipe_of, stored
from damages import damaged, small_fp8, twelve_layers

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.headers import TensorSpec
from halfbyte.families.examples import example

KIMI_MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
EXPERT = re.compile(r"\.layers\.(\d+)\.mlp\.experts\.")
IN_FULL = (1, 10, 60)  # layers of Kimi-K2.6 whose experts are loaded one by one; the others are alike, see below
FULL = ["nvfp4 modelopt, wafer's scope", "nvfp4 modelopt, nvidia's scope", "mxfp4 quark"]
METHODS = {  # what decides on the routed experts of each kind
    "nvfp4 modelopt": "ModelOptNvFp4FusedMoE",
    "nvfp4 compressed": "CompressedTensorsW4A4Nvfp4MoEMethod",
    "mxfp4 quark": "QuarkOCP_MX_MoEMethod",
    "mxfp4 compressed": "CompressedTensorsW4A4Mxfp4MoEMethod",
    "int4": "CompressedTensorsWNA16MoEMethod",
    "fp8 compressed": "CompressedTensorsW8A8Fp8MoEMethod",
    "fp8 block": "Fp8MoEMethod",
    "bf16": "UnquantizedFusedMoEMethod",
}


def with_some_experts(case):
    """Remove the experts of the layers that are not loaded completely."""
    few = [row for row in case["tensors"] if (at := EXPERT.search(row[0])) is None or int(at[1]) in IN_FULL]
    return {**case, "tensors": few}


@pytest.fixture(scope="module")
def cases():
    mini, large = open_checkpoint(KIMI_MINI), example("kimi-k2.6")
    found = {kind: planned(mini, recipe_of(kind)) for kind in RECIPES}
    nvfp4 = found["nvfp4 modelopt, wafer's scope"]
    fp8 = small_fp8()
    found |= {
        "int4, as kimi-mini is stored": stored(mini),
        "nvfp4 modelopt, 24 experts of 32": planned(mini, recipe_of("nvfp4 modelopt, wafer's scope"), keep=24),
        "nvfp4 modelopt, pruned after": planned(
            imagined(nvfp4["config"], [TensorSpec(*row) for row in nvfp4["tensors"]]), only_prune(), keep=24
        ),
        "mxfp4 quark, 24 experts of 32": planned(mini, recipe_of("mxfp4 quark"), keep=24),
        "fp8 block": stored(fp8),
        "fp8 block, 3 experts of 4": planned(fp8, only_prune(), keep=3),
    }
    return found | {f"Kimi-K2.6, {kind}": planned(large, recipe_of(kind)) for kind in FULL}


@pytest.fixture(scope="module")
def results(cases, in_vllm, tmp_path_factory):
    """Load everything with vLLM; results by name."""
    asked = {name: with_some_experts(case) if "K2.6" in name else case for name, case in cases.items()}
    asked |= damaged(open_checkpoint(KIMI_MINI)) | twelve_layers()
    folder = tmp_path_factory.mktemp("native")
    (folder / "cases.json").write_text(json.dumps([{"name": name, **case} for name, case in asked.items()]))
    in_vllm("-m", "halfbyte.audit.vllm_load", folder / "cases.json", folder / "results.json")
    return {result["name"]: result for result in json.loads((folder / "results.json").read_text())}


def faults(result):
    """Return all problems as one text."""
    found = [f"{result['stage']}: {result['error']} at {result.get('tensor')}"] if result["error"] else []
    for kind in ("dropped", "missing", "twice", "doubtful"):
        found += [f"{kind}: {name}" for name in result.get(kind, ())]
    return "\n".join(found)


# vLLM's CPU build has no other kernel for FP8 blocks, and so builds no such model on an older processor.
HAS_AMX = "amx_tile" in Path("/proc/cpuinfo").read_text()
SMALL = [
    *RECIPES,
    "int4, as kimi-mini is stored",
    "nvfp4 modelopt, 24 experts of 32",
    "nvfp4 modelopt, pruned after",
    "mxfp4 quark, 24 experts of 32",
    *(["fp8 block", "fp8 block, 3 experts of 4"] if HAS_AMX else []),
    "layer 1 alone",
]


@pytest.mark.parametrize("kind", SMALL)
def test_vllm_finds_everything_and_nothing_else(results, kind):
    assert faults(results[kind]) == ""
    assert results[kind]["stage"] == "done"


@pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "layer 1 alone"])
def test_the_routed_experts_are_what_the_recipe_says(results, cases, kind):
    (method,) = [method for start, method in METHODS.items() if kind.startswith(start)]
    experts = {module for module in results[kind]["methods"][method] if module.endswith(".routed_experts")}
    assert len(experts) == len({at[1] for name, *_ in cases[kind]["tensors"] if (at := EXPERT.search(name))}) > 0


def test_only_calibrated_kv_scales_are_left_unused(results, cases):
    # vLLM 0.32 looks for latent attention's KV scales under another name, drops them and uses 1: test_kv_scales.py.
    for kind in SMALL[:-1]:
        stored_scales = [name for name, *_ in cases[kind]["tensors"] if name.endswith((".k_scale", ".v_scale"))]
        assert results[kind]["unused_kv_scales"] == stored_scales
    assert len(results[SMALL[0]]["unused_kv_scales"]) == 2 * 6


@pytest.mark.parametrize("kind", FULL)
def test_kimi_k26_whole(results, cases, kind):
    result, whole = results[f"Kimi-K2.6, {kind}"], cases[f"Kimi-K2.6, {kind}"]["tensors"]
    assert result["error"] is None
    assert result["dropped"] == result["twice"] == result["doubtful"] == []
    # The experts of three layers were loaded: of the others all parameters are empty, and nothing else is.
    parts = {name for name in result["parameters"] if ".layers.1.mlp.experts.routed_experts." in name}
    others = [layer for layer in range(1, 61) if layer not in IN_FULL]
    empty = {name.replace(".layers.1.", f".layers.{layer}.") for name in parts for layer in others}
    assert {name.partition("[")[0] for name in result["missing"]} == empty
    assert len(result["missing"]) == len(empty) == 57 * len(parts)
    # Those layers differ from layer 1 in their number alone: in vLLM's parameters, and in our names, types and shapes.
    of_layer = {}
    for name, dtype, shape in whole:
        if at := EXPERT.search(name):
            of_layer.setdefault(int(at[1]), set()).add((name.replace(f".layers.{at[1]}.", ".layers.1."), dtype, shape))
    assert sorted(of_layer) == list(range(1, 61))
    for layer in range(2, 61):
        assert of_layer[layer] == of_layer[1]
        for name in parts:
            twin = name.replace(".layers.1.", f".layers.{layer}.")
            assert result["parameters"][twin] == result["parameters"][name]
    assert sum(map(len, of_layer.values())) + (len(whole) - 60 * len(of_layer[1])) == len(whole)


DAMAGES = {
    "no mm_projector in ModelOpt's list": ("load", "mm_projector"),
    "a glob for compressed-tensors": ("load", "self_attn"),
    "q_a_proj ignored, its fused twin not": ("config", "fused_qkv_a_proj"),
    "no shared experts in Quark's list": ("load", "shared_experts"),
    "no input_scale for one expert": ("done", r"missing: \S+layers\.1\.\S+w13_input_scale\[7, 1\]$"),
    "an absent expert": ("done", r"missing: \S+layers\.1\.\S+w2_weight\[7, :, :\]"),
    "an absent expert in Quark's spelling": ("done", r"missing: \S+layers\.1\.\S+w2_weight\[7, :, :\]"),
    "an expert too many": ("load", r"experts\.32\."),
    "scales for an ignored module": ("load", r"shared_experts\.down_proj\.weight_scale"),
    "layers of different numbers of experts": ("load", r"gate"),
    "layers.1* takes 10 and 11 too": ("load", r"layers\.1[01]\."),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_found(results, damage):
    stage, said = DAMAGES[damage]
    assert results[damage]["stage"] == stage
    assert re.search(said, faults(results[damage]), re.MULTILINE), faults(results[damage])[:3000]


def test_one_missing_scale_is_one_finding(results):
    assert len(faults(results["no input_scale for one expert"]).splitlines()) == 1
