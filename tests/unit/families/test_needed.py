"""Required tensors: none may be missing, whether in one layer or in all of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from pico import KINDS, write_pico

from halfbyte.checkpoint.folder import Checkpoint, open_checkpoint
from halfbyte.checkpoint.headers import lay_out
from halfbyte.errors import CheckpointError
from halfbyte.families.examples import example
from halfbyte.families.kimi_k25.geometry import KIMI_K26, release_shards, text_config
from halfbyte.families.model import describe

# Engines do without these: buffers that no loader reads, and scales that `audit` asks for where config.json does.
UNNEEDED = re.compile(r".*\.(inv_freq|k_scale|v_scale|input_scale|input_global_scale)")
FAMILIES = ("int4-k2.6", "int4-k2-thinking", "fp8-block-k2", "bf16", "nvfp4", "qwen3-moe")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, Checkpoint]:
    root = tmp_path_factory.mktemp("needed")
    return {kind: open_checkpoint(write_pico(root / kind, kind)) for kind in FAMILIES}


def without(checkpoint: Checkpoint, gone: set[str]) -> Checkpoint:
    return replace(checkpoint, tensors={n: t for n, t in checkpoint.tensors.items() if n not in gone})


def with_keys(checkpoint: Checkpoint, **keys: object) -> Checkpoint:
    return replace(checkpoint, config={**checkpoint.config, **keys})


def with_text_keys(checkpoint: Checkpoint, **keys: object) -> Checkpoint:
    return with_keys(checkpoint, text_config={**checkpoint.config["text_config"], **keys})


@pytest.mark.parametrize("kind", FAMILIES)
def test_no_tensor_may_be_missing_neither_one_nor_all_that_are_alike(checkpoints, kind):
    assert kind in KINDS
    whole = checkpoints[kind]
    describe(whole)
    needed = [name for name in whole.tensors if not UNNEEDED.fullmatch(name)]
    alike: dict[str, set[str]] = {}
    for name in needed:
        alike.setdefault(re.sub(r"\.\d+\.", ".N.", name), set()).add(name)
    for gone in [{name} for name in needed] + list(alike.values()):
        with pytest.raises(CheckpointError):
            describe(without(whole, gone))


@pytest.mark.parametrize("leaf", ["self_attn.o_proj", "mlp.shared_experts.down_proj", "mlp.experts.N.up_proj"])
def test_a_linear_that_no_layer_has_is_named(checkpoints, leaf):
    whole = checkpoints["nvfp4"]
    pattern = re.compile(r".*layers\.\d+\." + re.escape(leaf).replace("N", r"\d+") + r"\.[a-z_0-9]+")
    gone = {name for name in whole.tensors if pattern.fullmatch(name)}
    assert gone
    with pytest.raises(CheckpointError, match=re.escape(leaf.rpartition(".")[2])):
        describe(without(whole, gone))


def test_what_config_json_does_not_ask_for_may_be_missing(checkpoints):
    kimi, deepseek = checkpoints["nvfp4"], checkpoints["bf16"]
    describe(with_text_keys(without(kimi, {"language_model.lm_head.weight"}), tie_word_embeddings=True))
    describe(with_keys(without(deepseek, {"lm_head.weight"}), tie_word_embeddings=True))
    biases = {name for name in deepseek.tensors if name.endswith("e_score_correction_bias")}
    describe(with_keys(without(deepseek, biases), topk_method="greedy"))
    shared = {name for name in deepseek.tensors if ".shared_experts." in name}
    describe(with_keys(without(deepseek, shared), n_shared_experts=None))


def test_a_text_only_repack_needs_no_vision_and_a_picture_model_does(checkpoints):
    whole = checkpoints["nvfp4"]
    vision = {name for name in whole.tensors if name.startswith(("vision_tower.", "mm_projector."))}
    text_only = without(whole, vision)
    with pytest.raises(CheckpointError, match="vision_tower"):
        describe(text_only)
    describe(replace(text_only, config={key: whole.config[key] for key in whole.config if key != "vision_config"}))


@pytest.mark.parametrize(("keys", "what"), [
    ({"num_hidden_layers": 2, "vt_num_hidden_layers": 1}, r"blocks\.1\."),
    ({"vt_num_hidden_layers": 2}, r"blocks\.1\."),
    ({}, r"blocks\.1\."),  # the engines' default
    ({"num_hidden_layers": "two"}, "not a number of blocks"),
])  # fmt: skip
def test_the_blocks_of_the_vision_tower_are_those_that_engines_build(checkpoints, keys, what):
    with pytest.raises(CheckpointError, match=what):
        describe(with_keys(checkpoints["nvfp4"], vision_config={"patch_size": 14, **keys}))


def test_the_published_headers_are_whole():
    describe(example("kimi-k2.6"))
    geometry = replace(KIMI_K26, prefix="", vision_blocks=0)
    shards = release_shards(geometry)
    tensors = {info.name: info for shard, specs in shards.items() for info in lay_out(specs, shard)[1]}
    describe(Checkpoint(Path("kimi-k2-thinking"), text_config(geometry), tensors, dict.fromkeys(shards, 0)))
