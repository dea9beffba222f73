"""One damaged tensor at a time, each caught by exactly the responsible check."""

import numpy as np
import pytest
from damage import EXPERT, LAYER, LAYER_1, RECIPES, edit_json, edit_shard, failed, settle, with_byte

from halfbyte.audit.run import audit


def test_a_missing_scale_is_structure(outputs, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, lambda tensors: tensors.pop(f"{EXPERT}.up_proj.weight_scale"))
    settle(out)
    assert failed(outputs, out) == (["structure"], ["structure"])


def test_an_extra_tensor_is_structure(outputs, copy):
    out = copy("nvfp4a16")
    extra = ("BF16", (4,), bytes(8))
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({f"{LAYER}.mlp.gate.weight_scale": extra}))
    settle(out)
    assert failed(outputs, out) == (["structure"], ["structure"])


def test_a_missing_expert_is_structure(outputs, copy):
    out = copy("bf16")
    edit_shard(out, LAYER_1, lambda t: [t.pop(f"{EXPERT}.{leaf}_proj.weight") for leaf in ("gate", "up", "down")])
    settle(out)
    assert failed(outputs, out) == (["structure"], ["structure"])


def test_missing_input_scales_are_structure(outputs, copy):
    out = copy("modelopt")

    def promise(config):
        group = config["quantization_config"]["config_groups"]["group_0"]
        group["input_activations"] = group["weights"]

    edit_json(out / "config.json", promise)
    assert failed(outputs, out) == (["structure", "config"], ["structure"])  # the key is also not as planned


def test_a_linear_in_another_format_is_coverage(outputs, copy):
    out = copy("mxfp4-wafer")
    one = f"{LAYER}.mlp.shared_experts.down_proj"

    def change(tensors):
        _, (n, k), _ = tensors[f"{one}.weight"]
        tensors[f"{one}.weight"] = ("U8", (n, k // 2), bytes(n * k // 2))
        tensors[f"{one}.weight_scale"] = ("U8", (n, k // 32), bytes([127]) * (n * k // 32))

    edit_shard(out, LAYER_1, change)
    settle(out)
    assert "coverage" in audit(out).failed
    assert set(audit(out).failed) == {"coverage", "ignore"}  # the list still names it


def test_an_expert_that_stayed_bf16_is_coverage(outputs, copy):
    out = copy("mxfp4-wafer")

    def change(tensors):
        for leaf, shape in (("gate", (32, 64)), ("up", (32, 64)), ("down", (64, 32))):
            tensors[f"{EXPERT}.{leaf}_proj.weight"] = ("BF16", shape, bytes(4096))
            tensors.pop(f"{EXPERT}.{leaf}_proj.weight_scale")

    edit_shard(out, LAYER_1, change)
    settle(out)
    assert audit(out).failed == ["coverage", "ignore"]  # engines load experts all or none


@pytest.mark.parametrize(
    ("name", "key", "change"),
    [
        ("nvfp4a16", "ignore", lambda ignore: ignore.remove("re:.*self_attn.*")),
        ("nvfp4a16", "ignore", lambda ignore: ignore.append("re:.*experts.*")),
        ("nvfp4a16", "ignore", lambda ignore: ignore.append("re:.*(")),
        ("mxfp4-wafer", "exclude", lambda ignore: ignore.remove("re:mm_projector.*")),
        ("mxfp4-wafer", "exclude", lambda ignore: ignore.append(f"{EXPERT}.up_proj")),
        ("modelopt", "ignore", lambda ignore: ignore.append("language_model.model.layers.1*")),
        ("modelopt", "ignore", lambda ignore: ignore.append("layers.2")),
        ("modelopt", "ignore", lambda ignore: ignore.remove("mm_projector*")),
    ],
)
def test_a_list_that_matches_other_modules_is_ignore(outputs, copy, name, key, change):
    out = copy(name)
    edit_json(out / "config.json", lambda config: change(config["quantization_config"][key]))
    if name == "modelopt":
        edit_json(out / "hf_quant_config.json", lambda config: change(config["quantization"]["exclude_modules"]))
    assert failed(outputs, out) == (["ignore"], ["ignore"])


def test_two_lists_that_differ_are_config(outputs, copy):
    out = copy("modelopt")
    edit_json(out / "hf_quant_config.json", lambda config: config["quantization"]["exclude_modules"].append("ghost*"))
    assert failed(outputs, out) == (["config"], ["config"])


# Each damage to a scale, in a linear that the sample does not see.
@pytest.mark.parametrize(
    ("name", "tensor", "bytes_"),
    [
        ("nvfp4a16", "weight_scale", {0: 0x7F}),
        ("nvfp4a16", "weight_scale", {1: 0xFF}),
        ("nvfp4a16", "weight_scale", {1: 0x81}),
        ("mxfp4-wafer", "weight_scale", {3: 0xFF}),
        ("fp8-reference", "weight_scale", {0: 0x80, 1: 0x7F}),
        ("fp8-reference", "weight_scale", {1: 0xBC}),
    ],
)
def test_a_scale_that_is_not_finite_and_positive_is_scales(outputs, copy, name, tensor, bytes_):
    out = copy(name)
    for at, byte in bytes_.items():
        edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.down_proj.{tensor}", byte, at))
    settle(out)
    assert failed(outputs, out, sample=0) == (["scales"], ["scales"])


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_tensor_scale_that_is_not_finite_and_positive_is_scales(outputs, copy, value):
    out = copy("modelopt")
    name, data = f"{EXPERT}.down_proj.weight_scale_2", np.float32(value).tobytes()
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({name: ("F32", (), data)}))
    settle(out)
    assert failed(outputs, out, sample=0) == (["scales"], ["scales"])


def test_zero_block_scales_are_counted_and_noted(outputs, copy):
    out = copy("nvfp4a16")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.down_proj.weight_scale", 0))
    settle(out)
    scales = next(finding for finding in audit(out).findings if finding.check == "scales")
    assert (scales.level, "1 of 3,072 block scales at zero" in scales.text) == ("note", True)


@pytest.mark.parametrize(
    ("name", "suffix", "shape"), [("nvfp4a16", "weight_global_scale", (1,)), ("modelopt", "weight_scale_2", ())]
)
def test_an_unequal_pair_is_fused(outputs, copy, name, suffix, shape):
    out = copy(name)
    data = np.float32(17).tobytes()
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({f"{EXPERT}.up_proj.{suffix}": ("F32", shape, data)}))
    settle(out)
    assert failed(outputs, out, sample=0) == (["fused"], ["fused"])


def test_a_flipped_byte_in_a_kept_tensor_is_kept(outputs, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, with_byte(f"{LAYER}.self_attn.o_proj.weight", 0x55, at=100))
    settle(out)
    assert failed(outputs, out, sample=100) == (["kept"], [])


@pytest.mark.parametrize("change", [lambda path: path.write_text("other"), lambda path: path.unlink()])
def test_a_file_that_was_not_copied_is_kept(outputs, copy, change):
    out = copy("mxfp4-wafer")
    change(out / "chat_template.jinja")
    assert failed(outputs, out) == (["kept"], [])


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_a_flipped_code_is_repeat(outputs, copy, name):
    out = copy(name)
    suffix = "weight_packed" if name == "nvfp4a16" else "weight"
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.{suffix}", 0x31, at=9))
    settle(out)
    assert failed(outputs, out, sample=100) == (["repeat"], [])


def test_a_swept_scale_is_repeated_on_the_exact_reference(outputs, copy):
    out = copy("modelopt")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.weight_scale", 0x11))
    settle(out)
    assert failed(outputs, out, sample=100) == (["repeat"], [])


def test_the_sample_is_so_many_of_each_layer(outputs):
    texts = {
        n: audit(outputs / "mxfp4-wafer", against=outputs / "source", sample=n).findings[-1].text for n in (0, 1, 3)
    }
    assert texts[0].startswith("not checked")
    assert texts[1].startswith("2 linears")
    assert texts[3].startswith("6 linears")
