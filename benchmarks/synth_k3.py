"""Headers of a model of Kimi-K3's size under names that halfbyte knows: 497,220 tensors in 96 shards.

    python benchmarks/synth_k3.py DIR

Kimi-K3 has 92 layers of 896 experts with three matrices of two tensors each (MXFP4 as compressed-tensors spells it):
494,592. Of the other 2,628 (linear attention, residuals of attention, a latent space), halfbyte's families know nothing
yet (docs/add-a-family.md). Here Kimi-K2.6's take their place: 1,303 in the decoder and around it, 186 scales of a KV
cache, 1,139 of a vision tower of 94 blocks and its projector. Experts have K3's own shapes, so that their bytes are
right.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from synth import write_shards

from halfbyte.checkpoint.headers import TensorSpec
from halfbyte.families.kimi_k25.geometry import (
    KIMI_K26,
    ends,
    layer_linears,
    layer_others,
    projector,
    release_config,
    vision_tower,
)

K3_LIKE = replace(
    KIMI_K26,
    layers=93,
    experts=896,
    active_experts=16,
    width=3584,  # the latent space that K3's experts work in; its hidden size is 7,168
    dense_width=33792,
    expert_width=3072,
    heads=96,
    vision_blocks=94,
)
PUBLISHED_TENSORS = 497_220
EXPERT_PARAMETERS = 2_722_740_830_208


def write_k3_like(folder: Path) -> dict[str, int]:
    """Write every shard as its header and a hole; return the counts."""
    groups = [list(_layer(layer)) for layer in range(K3_LIKE.layers)]
    groups += [list(ends(K3_LIKE)), list(projector(K3_LIKE)), list(vision_tower(K3_LIKE))]
    shards = {f"model-{i:05d}-of-{len(groups):06d}.safetensors": specs for i, specs in enumerate(groups, 1)}
    counted = write_shards(folder, shards, _config())
    assert counted["tensors"] == PUBLISHED_TENSORS, counted
    return counted


def _layer(layer: int) -> Iterator[TensorSpec]:
    yield from layer_others(K3_LIKE, layer)
    for linear in layer_linears(K3_LIKE, layer):
        yield from linear.tensors("mxfp4_ct" if linear.role == "routed_experts" else "bf16")
    at = f"{K3_LIKE.prefix}model.layers.{layer}.self_attn"
    yield from (TensorSpec(f"{at}.{cache}_scale", "F32", (1,)) for cache in "kv")


def _config() -> dict[str, Any]:
    config = release_config(K3_LIKE)
    block = config["text_config"]["quantization_config"]
    block["format"] = "mxfp4-pack-quantized"
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    block["config_groups"]["group_0"]["weights"] |= weights
    return config


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(json.dumps(write_k3_like(parser.parse_args().folder)))
