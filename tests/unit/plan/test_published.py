"""Plans for Kimi-K2.6's published geometry give the published numbers: bytes, tensors, shards, ignore lists."""

import json
import math
from pathlib import Path

import pytest
from pico import write_pico

from halfbyte.checkpoint.folder import Checkpoint
from halfbyte.engine.pipeline import plan
from halfbyte.families.examples import example
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.plan.quantization_config import modelopt_file, output_config, quantization_block
from halfbyte.plan.summary import by_role
from halfbyte.recipe.load import load_recipe


@pytest.fixture(scope="module")
def kimi():
    checkpoint = example("kimi-k2.6")
    return checkpoint, describe(checkpoint)


@pytest.mark.parametrize(
    ("recipe", "payload_nbytes", "tensors", "shards"),
    [
        ("kimi-k2.6-bf16", 2_053_758_798_816, 70_310, 64),
        ("kimi-k2.6-mxfp4-wafer", 563_438_701_536, 139_430, 64),
        ("kimi-k2.6-mxfp4a16", 563_438_701_536, 139_430, 64),
        ("kimi-k2.6-nvfp4-wafer", 590_779_958_144, 278_341, 119),  # with 122 KV scales, cut at 5 GB
        ("kimi-k2.6-nvfp4-nvidia", 595_148_192_736, 277_670, 120),
        ("kimi-k2.7-code-nvfp4-nvidia", 595_148_192_736, 277_670, 120),
    ],
)
def test_planned_sizes_match_published_checkpoints(kimi, recipe, payload_nbytes, tensors, shards):
    made = make_plan(*kimi, load_recipe(recipe))
    places = [tensor for shard in made.shards for tensor in shard.tensors]
    assert sum(place.nbytes for place in places) == payload_nbytes
    assert len(places) == tensors
    assert len(made.shards) == shards


@pytest.fixture(scope="module")
def nvidia(kimi):
    """The headers of nvidia/Kimi-K2.6-NVFP4, which are those of the recipe for it."""
    made = make_plan(*kimi, load_recipe("kimi-k2.6-nvfp4-nvidia"))
    tensors = {tensor.name: tensor for shard in made.shards for tensor in shard.tensors}
    shards = {shard.name: shard.nbytes for shard in made.shards}
    return Checkpoint(Path("nvidia"), output_config(made), tensors, shards)


@pytest.mark.parametrize("known", [False, True])
def test_half_of_the_experts(nvidia, known):
    """0xSero/Kimi-K2.6-519B-NVFP4, to the byte, before and after the experts are selected."""
    model = describe(nvidia)
    kept = {layer: tuple(range(layer % 2, 384, 2)) for layer in range(1, 61)} if known else None
    made = make_plan(nvidia, model, load_recipe("kimi-k2.6-nvfp4-reap192"), kept=kept)
    places = [tensor for shard in made.shards for tensor in shard.tensors]
    assert len(places) == 139_430
    kv_scales = 2 * 61  # F32: the release has them, where this source has none
    assert sum(place.nbytes for place in places) + 4 * kv_scales == 309_602_275_784
    weights = sum(linear.weights for job in made.jobs for linear in job.linears)
    plain = sum(math.prod(spec.shape) for job in made.jobs if not job.linears for spec in job.outputs)
    assert weights + plain == 519_453_777_648
    config = output_config(made)
    assert config["text_config"]["n_routed_experts"] == 192
    assert config["quantization_config"] == nvidia.config["quantization_config"]


def test_the_ignore_list_that_nvidia_publishes(kimi):
    """124 entries, shortened as ModelOpt does: the dense layer at once, two entries for every other layer."""
    layers = [f"language_model.model.layers.{layer}." for layer in range(1, 61)]
    pairs = [f"{layer}{part}*" for layer in layers for part in ("mlp.shared_experts", "self_attn")]
    ends = ["language_model.lm_head", "language_model.model.layers.0*", "mm_projector*", "vision_tower*"]
    made = make_plan(*kimi, load_recipe("kimi-k2.6-nvfp4-nvidia"))
    assert quantization_block(made.recipe.quantize, made)["ignore"] == sorted(pairs + ends)
    assert modelopt_file(made)["quantization"]["exclude_modules"] == sorted(pairs + ends)
    code = make_plan(*kimi, load_recipe("kimi-k2.7-code-nvfp4-nvidia"))
    listed = sorted([*pairs, *ends, "language_model.model.embed_tokens"])  # 125 entries: ModelOpt 0.44 names embeddings
    fp4 = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    producer = {"name": "modelopt", "version": "0.44.0rc1"}
    assert quantization_block(code.recipe.quantize, code) == {
        "config_groups": {"group_0": {"input_activations": fp4, "weights": fp4, "targets": ["Linear"]}},
        "ignore": listed,
        "quant_algo": "NVFP4",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
        "producer": producer,
        "quant_method": "modelopt",
        "written_by": {"name": "halfbyte"},  # ours alone
    }
    assert modelopt_file(code) == {
        "producer": producer,
        "written_by": {"name": "halfbyte"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": listed,
        },
    }


# The quantization_config block that the card of the MXFP4 release prints.
_MX = {
    "dtype": "fp4",
    "qscheme": "per_group",
    "ch_axis": -1,
    "group_size": 32,
    "scale_format": "e8m0",
    "scale_calculation_mode": "even",
    "observer_cls": "PerBlockMXObserver",
}
MXFP4_CARD = {
    "quant_method": "quark",
    "version": "0.11+4a34634b4a",
    "global_quant_config": {"weight": {**_MX, "is_dynamic": False}, "input_tensors": {**_MX, "is_dynamic": True}},
    "exclude": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:mm_projector.*",
        "re:vision_tower.*",
    ],
    "algo_config": None,
    "export": {"pack_method": "reorder", "weight_format": "real_quantized"},
}
# What the card leaves out and readers ask for: vLLM the empty keys, Quark itself `symmetric`. And who wrote it.
_EMPTY = {"layer_quant_config": {}, "layer_type_quant_config": {}, "written_by": {"name": "halfbyte"}}
_EMPTY_GLOBAL = {"output_tensors": None, "bias": None}


def test_the_mxfp4_cards_block_key_by_key(kimi):
    config = output_config(make_plan(*kimi, load_recipe("kimi-k2.6-mxfp4-wafer")))
    expected = MXFP4_CARD | _EMPTY
    tensors = {place: {**spec, "symmetric": None} for place, spec in MXFP4_CARD["global_quant_config"].items()}
    expected["global_quant_config"] = tensors | _EMPTY_GLOBAL
    expected["export"] = MXFP4_CARD["export"] | {"kv_cache_group": []}
    assert config["quantization_config"] == expected
    assert "quantization_config" not in config["text_config"]


def test_the_head_of_a_text_model_is_listed_as_modelopt_lists_it(tmp_path):
    """A module that no prefix shortens gets no star; ModelOpt 0.47 lists embeddings and routers besides."""
    golden = json.loads((Path(__file__).parents[2] / "golden" / "modelopt-calibrated-0.47.0.json").read_text())
    theirs = golden["models"]["bf16"]["recipes"]["experts_mse"]["quantization_config"]["ignore"]
    made = plan(write_pico(tmp_path, "bf16"), load_recipe("kimi-k2.7-code-nvfp4-decart"))
    ours = quantization_block(made.recipe.quantize, made)["ignore"]
    assert ours == [entry for entry in theirs if not entry.endswith((".embed_tokens", ".mlp.gate"))]


def test_kv_scales_have_a_row_of_their_own(kimi):
    """Attention is kept; what is new in it are two scales for each layer's KV cache."""
    rows = by_role(make_plan(*kimi, load_recipe("kimi-k2.6-nvfp4-wafer")))
    attention = {row.action: row.tensors for row in rows if row.role == "attention"}
    assert attention.pop("FP8 KV cache scales, calibrated") == 122
    assert list(attention) == ["keep, byte for byte"]
