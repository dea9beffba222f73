"""Facts about a checkpoint for launchers: format, activations, experts, tokenizer and revision, for each kind."""

import json
from dataclasses import replace as changed
from pathlib import Path

import pytest
from hub_layout import COMMIT, as_hub_cache, as_local_dir
from ignore_list import with_ignore_list

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import CheckpointError
from halfbyte.families.examples import example
from halfbyte.families.model import describe
from halfbyte.plan.manifest import make_plan
from halfbyte.recipe.load import load_recipe
from halfbyte.serve.checkpoint_facts import served, served_checkpoint
from halfbyte.serve.needs import ABSORBED, needs, needs_of

MINI = Path(__file__).parents[3] / "models/kimi-mini"


@pytest.fixture
def pico(pico):
    return lambda *kind, **shape: with_ignore_list(pico(*kind, **shape))


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("kind", "quantization", "activations"),
    [
        ("int4-k2.6", "int4-compressed-tensors", "none"),
        ("fp8-block-k2", "fp8-block", "fp8"),
        ("fp8-channel", "fp8-channel", "fp8"),
        ("bf16", "bf16", "none"),
        ("nvfp4", "nvfp4-modelopt", "nvfp4"),
        ("nvfp4_ct", "nvfp4-compressed-tensors", "nvfp4"),
        ("mxfp4", "mxfp4-quark", "mxfp4"),
        ("mxfp4_ct", "mxfp4-compressed-tensors", "mxfp4"),
    ],
)
def test_every_format_is_recognized_by_its_tensors(pico, kind, quantization, activations):
    found = served(pico(kind))
    assert (found.quantization, found.activations) == (quantization, activations)
    assert (found.experts, found.uneven, found.source_experts, found.revision) == (4, False, None, None)
    assert found.vision == (kind in ("int4-k2.6", "nvfp4", "nvfp4_ct", "mxfp4", "mxfp4_ct"))


@pytest.mark.parametrize("name", ["num_attention_heads", "num_hidden_layers", "max_position_embeddings"])
@pytest.mark.parametrize("value", [0, -1, "64", 1.5, True])
def test_invalid_counts_in_the_config_are_refused(pico, name, value):
    folder = pico("bf16")
    edit(folder, **{name: value})
    with pytest.raises(CheckpointError, match=name):
        served(folder)


def test_kimi_mini():
    found = served(MINI)
    assert found.family == "kimi_k25"
    assert (found.context, found.heads, found.experts) == (4096, 4, 32)
    assert not found.remote_tokenizer
    assert found.kv_dtype is None


def test_weights_only_is_read_from_the_config(pico):
    folder = pico("nvfp4")
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    block["config_groups"]["group_0"]["input_activations"] = None
    block["kv_cache_scheme"] = {"dynamic": False, "num_bits": 8, "type": "float"}
    edit(folder, quantization_config=block)
    found = served(folder)
    assert (found.activations, found.kv_dtype) == ("none", "fp8")
    folder = pico("mxfp4")
    edit(folder, quantization_config={"quant_method": "quark", "global_quant_config": {"input_tensors": None}})
    assert served(with_ignore_list(folder)).activations == "none"


def test_modelopt_s_own_file_counts_where_the_config_says_nothing(pico):
    folder = pico("nvfp4")
    config = json.loads((folder / "config.json").read_text())
    listed = config.pop("quantization_config")["ignore"]
    (folder / "config.json").write_text(json.dumps(config))
    block = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": listed}
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": block}))
    found = served(folder)
    assert (found.quantization, found.activations, found.kv_dtype) == ("nvfp4-modelopt", "nvfp4", "fp8")


def kimi_sized(folder):
    """A small checkpoint whose config declares Kimi's vocabulary size."""
    checkpoint = open_checkpoint(folder)
    text = {**checkpoint.config["text_config"], "vocab_size": 163_840}
    return changed(checkpoint, config={**checkpoint.config, "text_config": text}), describe(checkpoint)


def test_kimi_releases_are_distinguished(pico):
    checkpoint, model = kimi_sized(pico("int4-k2.6"))

    def family(root="some/folder", **config):
        given = changed(checkpoint, root=Path(root), config={**checkpoint.config, **config})
        return served_checkpoint(given, model).family

    assert family(eos_token_id=163_586) == "kimi-k2.6"
    assert family(eos_token_id=163_585) == "kimi-k2.5"
    assert family("models/Kimi-K2.7-Code-NVFP4") == "kimi-k2.7-code"
    cached = f"/cache/models--nvidia--Kimi-K2.5-NVFP4/snapshots/{COMMIT}"
    assert family(cached, eos_token_id=163_586) == "kimi-k2.5"
    assert family(cached, text_config={**checkpoint.config["text_config"], "vocab_size": 128}) == "kimi_k25"
    assert served_checkpoint(checkpoint, model).source_experts == 384  # all of Kimi's releases have so many


def test_text_models_are_distinguished(pico):
    checkpoint = open_checkpoint(pico("int4-k2-thinking"))
    model = describe(checkpoint)

    def family(**config):
        given = changed(checkpoint, config={**checkpoint.config, "vocab_size": 163_840, **config})
        return served_checkpoint(given, model).family

    assert family(max_position_embeddings=262_144, rms_norm_eps=1e-5) == "kimi-k2-thinking"
    assert family(max_position_embeddings=262_144, rms_norm_eps=1e-6) == "kimi-k2-instruct-0905"
    assert family(max_position_embeddings=131_072, rms_norm_eps=1e-6) == "kimi-k2-instruct"


def test_a_card_names_its_source_model(pico):
    folder = pico("int4-k2.6")
    checkpoint, model = kimi_sized(folder)
    (folder / "README.md").write_text("---\nbase_model:\n- moonshotai/Kimi-K2.7-Code\n---\n# About\nKimi-K2.5 too\n")
    checkpoint = changed(checkpoint, root=folder.rename(folder.with_name("made")))
    assert served_checkpoint(checkpoint, model).family == "kimi-k2.7-code"


def test_a_pruned_checkpoint_has_its_source_experts(pico):
    folder = pico("int4-k2.6")
    (folder / "halfbyte").mkdir()
    (folder / "halfbyte/prune-plan.json").write_text(json.dumps({"router": {"experts": 6}}))
    assert served(folder).source_experts == 6
    (folder / "halfbyte/prune-plan.json").write_text(json.dumps({"router": {"experts": 4}}))
    assert served(folder).source_experts is None
    (folder / "halfbyte/prune-plan.json").write_text("[")
    assert served(folder).source_experts is None


def test_a_download_has_its_revision(pico, tmp_path):
    folder = pico("int4-k2.6")
    assert served(as_hub_cache(folder, tmp_path / "cache")).revision == COMMIT
    assert served(as_local_dir(folder)).revision == COMMIT


def test_kimi_s_tokenizer_is_remote_code_until_there_is_a_fast_one(pico):
    folder = pico("int4-k2.6")
    for name in ("tokenizer.json", "tiktoken.model", "tokenizer_config.json"):
        (folder / name).unlink(missing_ok=True)
    assert not served(folder).remote_tokenizer
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["a.B", None]}}))
    assert served(folder).remote_tokenizer
    (folder / "tokenizer.json").write_text("{}")
    assert not served(folder).remote_tokenizer


def test_an_incomplete_folder_is_refused(pico, tmp_path):
    with pytest.raises(CheckpointError, match="the folder does not exist"):
        served(tmp_path / "nothing")
    folder = pico("nvfp4")
    edit(folder, quantization_config={"quant_method": "quark"})
    with pytest.raises(CheckpointError, match="declares quark"):
        served(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        served(folder)


def test_needs_are_the_same_from_headers_and_from_the_plan_that_changes_nothing():
    checkpoint = example("kimi-k2.6")
    found = needs_of(checkpoint, describe(checkpoint))
    assert found.weights_nbytes == 595_148_192_736
    parts = {part.name: part.nbytes for part in found.parts}
    assert parts[ABSORBED] == 61 * 64 * 256 * 512 * 2
    assert parts["latent attention"] == 61 * (1536 + 576) * 7168 * 2
    assert parts["attention"] + parts["latent attention"] == 6_168_444_928 * 2
    assert parts["routed experts"] == 60 * 384 * 24_772_632
    assert parts["embedding"] == parts["output head"] == 1_174_405_120 * 2
    assert found.routed == ((384, 60, 60 * 384 * 24_772_632),)
    assert (found.layers, found.kv_values, found.latent, found.heads, found.context) == (61, 61 * 576, 576, 64, 262_144)
    nvfp4 = needs(make_plan(checkpoint, describe(checkpoint), load_recipe("kimi-k2.6-nvfp4-nvidia")))
    assert nvfp4.routed == found.routed  # INT4 with BF16 scales and NVFP4 are the same size to the byte
    assert nvfp4.pruned(192).weights_nbytes == 309_602_275_296  # published, but for 122 KV scales
