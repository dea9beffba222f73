"""Complete checkpoints equal to the peers', tensor by tensor: tests/golden/checkpoint-*.json."""

import importlib
import json
import re
from pathlib import Path

import pytest

from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

GOLDEN = Path(__file__).parents[1] / "golden"
MXFP4, BF16 = "kimi-k2.6-mxfp4-wafer", "kimi-k2.6-bf16"

# The block that the card of wafer-ai/Kimi-K2.6-MXFP4 prints, letter by letter.
CARD = r"""
{
  "quant_method": "quark",
  "version": "0.11+4a34634b4a",
  "global_quant_config": {
    "weight":        {"dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "scale_format": "e8m0", "scale_calculation_mode": "even", "observer_cls": "PerBlockMXObserver", "is_dynamic": false},
    "input_tensors": {"dtype": "fp4", "qscheme": "per_group", "ch_axis": -1, "group_size": 32, "scale_format": "e8m0", "scale_calculation_mode": "even", "observer_cls": "PerBlockMXObserver", "is_dynamic": true}
  },
  "exclude": [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    "re:mm_projector.*",
    "re:vision_tower.*"
  ],
  "algo_config": null,
  "export": {"pack_method": "reorder", "weight_format": "real_quantized"}
}
"""  # noqa: E501

# What the card leaves out: keys that vLLM and SGLang read (vLLM takes the length of kv_cache_group), `symmetric`, which
# Quark's own parser asks for, and who wrote it.
READERS_NEED = {
    "global_quant_config.weight.symmetric": None,
    "global_quant_config.input_tensors.symmetric": None,
    "written_by.name": "halfbyte",
    "export.kv_cache_group": [],
    "layer_quant_config": {},
    "layer_type_quant_config": {},
    "global_quant_config.output_tensors": None,
    "global_quant_config.bias": None,
}


@pytest.fixture(scope="module")
def checkpoint():
    """Import tests/golden/checkpoint.py, which imports its neighbor by name, as in the peers' environments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(GOLDEN)
        return importlib.import_module("checkpoint")


@pytest.fixture(scope="module")
def source(checkpoint, tmp_path_factory):
    return checkpoint.write(tmp_path_factory.mktemp("plain") / "source")


@pytest.fixture(scope="module")
def made(source, tmp_path_factory):
    """The outputs of both recipes, by recipe."""
    out = tmp_path_factory.mktemp("made")
    for recipe in (MXFP4, BF16):
        quantize(source, out / recipe, load_recipe(recipe))
    return {recipe: out / recipe for recipe in (MXFP4, BF16)}


def golden(peer):
    return json.loads((GOLDEN / f"checkpoint-{peer}.json").read_text())


def config(folder):
    return json.loads((folder / "config.json").read_text())


def leaves(value, path=()):
    """Yield every value of nested objects by its dotted path; an empty object is a value."""
    if not (isinstance(value, dict) and value):
        return {".".join(path): value}
    return {key: leaf for name, inner in value.items() for key, leaf in leaves(inner, (*path, name)).items()}


@pytest.mark.parametrize("peer", ["quark-0.11.1", "compressed-tensors-0.20.0"])
def test_the_peers_had_the_same_source(checkpoint, source, peer):
    assert checkpoint.sha256(source) == golden(peer)["source_sha256"]


@pytest.mark.parametrize(("recipe", "peer"), [(MXFP4, "quark-0.11.1"), (BF16, "compressed-tensors-0.20.0")])
def test_every_tensor_is_the_peers_own(checkpoint, made, recipe, peer):
    """Names, dtypes, shapes and bytes; nothing more and nothing less."""
    assert checkpoint.contents(made[recipe]) == golden(peer)["tensors"]


@pytest.mark.parametrize("recipe", [MXFP4, BF16])
def test_the_index_names_the_shard_of_every_tensor(checkpoint, made, recipe):
    index = json.loads((made[recipe] / "model.safetensors.index.json").read_text())["weight_map"]
    shards = sorted(made[recipe].glob("*.safetensors"))
    assert index == {name: shard.name for shard in shards for name, _ in checkpoint.read_shard(shard)}


def test_the_quantization_block_is_the_cards_and_what_readers_need(made):
    assert leaves(config(made[MXFP4])["quantization_config"]) == leaves(json.loads(CARD)) | READERS_NEED


def test_the_quantization_block_says_what_quarks_own_says(made):
    """Quark writes more keys; those that both have differ in its version and in how `exclude` is spelled."""
    ours, quarks = (
        leaves(config(made[MXFP4])["quantization_config"]),
        leaves(golden("quark-0.11.1")["quantization_config"]),
    )
    assert ours.keys() - quarks.keys() == {"written_by.name"}
    assert {key for key in ours.keys() & quarks.keys() if ours[key] != quarks[key]} == {"version", "exclude"}


def test_the_exclude_list_is_what_quark_kept_but_for_the_routers(made):
    """Quark lists modules, we list patterns; vLLM builds routers without a quantization method in any case."""
    patterns = config(made[MXFP4])["quantization_config"]["exclude"]
    names = {name.rpartition(".")[0] for name in golden("quark-0.11.1")["tensors"]}
    kept = set(golden("quark-0.11.1")["quantization_config"]["exclude"])
    ignored = {name for name in names if any(_matches(pattern, name) for pattern in patterns)}
    beside = {name for name in ignored if name.endswith(("layernorm", "rotary_emb"))}  # no linears
    assert kept - ignored == {f"model.layers.{layer}.mlp.gate" for layer in (1, 2)}
    assert ignored - kept == beside


def _matches(pattern, name):
    return re.match(pattern.removeprefix("re:"), name) if pattern.startswith("re:") else pattern == name


@pytest.mark.parametrize("recipe", [MXFP4, BF16])
def test_the_rest_of_the_config_stays(checkpoint, made, recipe):
    written = config(made[recipe])
    written.pop("quantization_config", None)
    expected = {key: value for key, value in checkpoint.TEXT.items() if key != "quantization_config"}
    assert list(written.items()) == list(expected.items())
    assert ("quantization_config" in config(made[recipe])) == (recipe == MXFP4)


@pytest.mark.parametrize("recipe", [MXFP4, BF16])
def test_names_under_language_model_get_the_same_bytes(checkpoint, made, tmp_path, recipe):
    prefix = "language_model."
    renamed = checkpoint.write(tmp_path / "source", prefix=prefix)
    quantize(renamed, tmp_path / "out", load_recipe(recipe))
    expected = {prefix + name: line for name, line in checkpoint.contents(made[recipe]).items()}
    assert checkpoint.contents(tmp_path / "out") == expected
    written, plain = config(tmp_path / "out"), config(made[recipe])
    assert "quantization_config" not in written["text_config"]
    assert written.get("quantization_config") == plain.get("quantization_config")
