"""One wrong key in config.json at a time, each caught by exactly the responsible check."""

import pytest
from damage import RECIPES, edit_json, failed

from halfbyte.audit.run import audit


def nested(config):
    config["text_config"]["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_a_stale_block_in_the_text_config_is_config(outputs, copy, name):
    out = copy(name)
    edit_json(out / "config.json", nested)
    alone = ["config"] if name != "bf16" else ["ignore", "config"]  # without a block above it, it is the one in force
    assert failed(outputs, out) == (alone, alone)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["quantization_config"].update(format="pack-quantized"),
        lambda config: config["text_config"].update(n_routed_experts=8),
        lambda config: config["text_config"].update(num_hidden_layers=2),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_config(outputs, copy, change):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", change)
    assert failed(outputs, out) == (["config"], ["config"])


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["text_config"].pop("n_group"),
        lambda config: config["text_config"].update(model_type="deepseek_v3"),
        lambda config: config.update(added=1),
    ],
)
def test_a_key_that_is_not_the_sources_is_config(outputs, copy, change):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", change)
    assert failed(outputs, out) == (["config"], [])


def test_a_missing_block_is_config(outputs, copy):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", lambda config: config.pop("quantization_config"))
    assert failed(outputs, out) == (["config"], ["config"])


def test_a_stale_file_of_modelopt_is_config(outputs, copy):
    out = copy("nvfp4a16")
    (out / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert failed(outputs, out) == (["config"], ["config"])


@pytest.mark.parametrize("text", [None, "{", "[]", '{"model_type": "gpt2"}'])
def test_without_a_config_the_rest_says_that_it_was_not_checked(outputs, copy, text):
    out = copy("nvfp4a16")
    (out / "config.json").unlink()
    if text:
        (out / "config.json").write_text(text)
    found = audit(out, against=outputs / "source")
    assert found.failed == ["config"]
    assert [f.check for f in found.findings if f.level == "good"] == ["plan", "index", "bytes"]
