"""Plans for Kimi-K2.6's published geometry give the published numbers: bytes, tensors, shards, ignore lists."""

import pytest

from halfbyte.models.model import describe
from halfbyte.plan.engine_config import modelopt_file, quantization_block
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
