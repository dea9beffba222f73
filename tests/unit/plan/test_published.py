"""Plans for Kimi-K2.6's published geometry give the published numbers: bytes, tensors, shards, ignore lists."""

import pytest

from halfbyte.models.model import describe
from halfbyte.plan.engine_config import modelopt_file, output_config, quantization_block
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe import load_recipe
from halfbyte.source.example import example


@pytest.fixture(scope="module")
def kimi():
    checkpoint = example("kimi-k2.6")
    return checkpoint, describe(checkpoint)


@pytest.mark.parametrize(
    ("recipe", "payload_nbytes", "tensors", "shards"),
    [
        ("kimi-k2.6-bf16", 2_053_758_798_816, 70_310, 64),
        ("kimi-k2.6-mxfp4-wafer", 563_438_701_536, 139_430, 64),
        ("kimi-k2.6-nvfp4-wafer", 590_779_958_144, 278_341, 119),  # with 122 KV scales, cut at 5 GB
        ("kimi-k2.6-nvfp4-nvidia", 595_148_192_736, 277_670, 120),
    ],
)
def test_sizes(kimi, recipe, payload_nbytes, tensors, shards):
    made = make_plan(*kimi, load_recipe(recipe))
    places = [tensor for shard in made.shards for tensor in shard.tensors]
    assert sum(place.nbytes for place in places) == payload_nbytes
    assert len(places) == tensors
    assert len(made.shards) == shards


def test_the_ignore_list_that_nvidia_publishes(kimi):
    """124 entries, shortened as ModelOpt does: the dense layer at once, two entries for every other layer."""
    layers = [f"language_model.model.layers.{layer}." for layer in range(1, 61)]
    pairs = [f"{layer}{part}*" for layer in layers for part in ("mlp.shared_experts", "self_attn")]
    ends = ["language_model.lm_head", "language_model.model.layers.0*", "mm_projector*", "vision_tower*"]
    made = make_plan(*kimi, load_recipe("kimi-k2.6-nvfp4-nvidia"))
    assert quantization_block(made.recipe.quantize, made)["ignore"] == sorted(pairs + ends)
    assert modelopt_file(made)["quantization"]["exclude_modules"] == sorted(pairs + ends)


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
# What the card leaves out and vLLM's Quark reader asks for; all of it empty.
_EMPTY = {"layer_quant_config": {}, "layer_type_quant_config": {}}
_EMPTY_GLOBAL = {"output_tensors": None, "bias": None}


def test_the_mxfp4_cards_block_key_by_key(kimi):
    config = output_config(make_plan(*kimi, load_recipe("kimi-k2.6-mxfp4-wafer")))
    expected = MXFP4_CARD | _EMPTY
    expected["global_quant_config"] = MXFP4_CARD["global_quant_config"] | _EMPTY_GLOBAL
    expected["export"] = MXFP4_CARD["export"] | {"kv_cache_group": []}
    assert config["quantization_config"] == expected
    assert "quantization_config" not in config["text_config"]
