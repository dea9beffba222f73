"""The effect of an expert selection on names, rows, lists and numbers, before any file."""

from dataclasses import replace

import pytest
from pico import write_pico

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.headers import TensorInfo
from halfbyte.errors import CheckpointError
from halfbyte.families.model import describe
from halfbyte.families.registry import family_of
from halfbyte.plan.manifest import make_plan
from halfbyte.plan.pruned import kept_digest, renumbered, router_rows
from halfbyte.recipe.load import load_recipe

KIMI = family_of({"model_type": "kimi_k25"})
QWEN = family_of({"model_type": "qwen3_moe"})
KEPT = {1: (0, 2, 3, 7), 2: (1, 2, 5, 6)}
LAYER = "language_model.model.layers"


def test_adjacent_router_rows_are_read_together():
    info = TensorInfo("gate.weight", "BF16", (8, 64), "shard", 1000, 1000 + 8 * 128)
    assert [(r.begin, r.end, r.shape) for r in router_rows(info, (0, 2, 3, 7))] == [
        (1000, 1128, (1, 64)),
        (1000 + 2 * 128, 1000 + 4 * 128, (2, 64)),
        (1000 + 7 * 128, 1000 + 8 * 128, (1, 64)),
    ]
    assert router_rows(info, range(8)) == (info,)
    bias = TensorInfo("bias", "F32", (8,), "shard", 16, 48)
    assert [(r.begin, r.end, r.shape) for r in router_rows(bias, (1, 6))] == [(20, 24, (1,)), (40, 44, (1,))]


def test_expert_names_are_renumbered():
    assert KIMI.with_expert(f"{LAYER}.1.mlp.experts.11.up_proj", 1) == f"{LAYER}.1.mlp.experts.1.up_proj"
    assert QWEN.with_expert("model.layers.10.mlp.experts.10.down_proj", 7) == "model.layers.10.mlp.experts.7.down_proj"
    with pytest.raises(ValueError, match="shared"):
        KIMI.with_expert(f"{LAYER}.1.mlp.shared_experts.up_proj", 1)


def test_lists_with_expert_numbers_are_renumbered():
    block = {
        "quant_method": "quark",
        "exclude": [
            "lm_head",
            "re:.*shared_experts.*",
            r"re:.*mlp\.experts\.\d+\.up_proj",
            "re:.*mlp.experts.[0-9]+.(gate|up)_proj",
            f"{LAYER}.1.mlp.experts*",
            f"{LAYER}.1.mlp.experts.3.up_proj",
            f"{LAYER}.1.mlp.experts.4.up_proj",
            f"{LAYER}.3.mlp.experts.4.up_proj",
        ],
        "layer_quant_config": {
            f"{LAYER}.2.mlp.experts.6.down_proj": {"bits": 8},
            f"{LAYER}.2.mlp.experts.7.down_proj": 1,
        },
        "export": {"group": None, "size": 32, "flag": True},
    }
    found = renumbered(block, KIMI, KEPT)
    assert found == {
        "quant_method": "quark",
        "exclude": [
            "lm_head",
            "re:.*shared_experts.*",
            r"re:.*mlp\.experts\.\d+\.up_proj",
            "re:.*mlp.experts.[0-9]+.(gate|up)_proj",
            f"{LAYER}.1.mlp.experts*",
            f"{LAYER}.1.mlp.experts.2.up_proj",
            f"{LAYER}.3.mlp.experts.4.up_proj",
        ],
        "layer_quant_config": {f"{LAYER}.2.mlp.experts.3.down_proj": {"bits": 8}},
        "export": {"group": None, "size": 32, "flag": True},
    }


@pytest.mark.parametrize(
    "pattern",
    [
        f"{LAYER}.1.mlp.experts.3*",
        r"re:.*mlp\.experts\.3\..*",
        r"re:.*layers\.1\.mlp\.experts\.(3|4)\.up_proj",
        r"re:.*experts\.\d\.down_proj",
        r"re:.*experts\.[0-3]\..*",
    ],
)
def test_a_pattern_for_single_experts_is_refused(pattern):
    with pytest.raises(CheckpointError, match="matches single experts with a pattern"):
        renumbered({"ignore": [pattern]}, KIMI, KEPT)


def test_until_experts_are_chosen_all_shards_of_a_layer_are_needed(tmp_path):
    """They are verified before the run, and must be those that it started from."""
    checkpoint = open_checkpoint(write_pico(tmp_path, experts=8))
    late = {
        name: info._replace(shard="late") if ".experts.7." in name else info
        for name, info in checkpoint.tensors.items()
    }
    checkpoint = replace(checkpoint, tensors=late)
    recipe = load_recipe("kimi-k2.6-nvfp4-reap192", ["prune.keep=4"])

    def shards(kept):
        made = make_plan(checkpoint, describe(checkpoint), recipe, kept=kept)
        return {shard for job in made.jobs for shard in made.source_shards(job)}

    assert "late" in shards(None)
    assert "late" not in shards(dict.fromkeys((1, 2), (0, 1, 2, 3)))
    assert "late" in shards(dict.fromkeys((1, 2), (0, 1, 2, 7)))


def test_each_choice_of_experts_has_its_own_hash():
    assert kept_digest({1: (0, 1), 2: (2, 3)}) == kept_digest({2: (2, 3), 1: (0, 1)})
    assert len({kept_digest(kept) for kept in (KEPT, {**KEPT, 2: (1, 2, 5, 7)}, {1: KEPT[1]}, {3: KEPT[1]})}) == 4
