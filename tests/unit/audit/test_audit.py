"""One damage at a time, each caught by the one check that should, and whole outputs that pass all of them."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from pico import write_pico

from halfbyte import cli
from halfbyte.audit import repeat
from halfbyte.audit.run import CHECKS, audit, save
from halfbyte.errors import CheckpointError, UsageError
from halfbyte.pipeline import quantize
from halfbyte.recipe import load_recipe
from halfbyte.source.headers import TensorSpec, lay_out, read_header

RECIPES = ("mxfp4-wafer", "nvfp4a16", "fp8-reference", "bf16")
LAYER = "language_model.model.layers.1"
EXPERT = f"{LAYER}.mlp.experts.2"
LAYER_1 = "model-00002-of-000006.safetensors"
EVERY = [*CHECKS, "repeat"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A source, and what each recipe makes of it."""
    root = tmp_path_factory.mktemp("audit")
    source = write_pico(root / "source")
    for name in RECIPES:
        quantize(source, root / name, load_recipe(f"kimi-k2.6-{name}"))
    modelopt = ["quantize.format=nvfp4", "quantize.scales=mse", "quantize.kv_cache=none"]
    modelopt += ['quantize.config.producer_version="0.47.0"', f"quantize.config.ignore_patterns={json.dumps(GLOBS)}"]
    quantize(source, root / "modelopt", load_recipe("kimi-k2.6-nvfp4a16", modelopt))
    return root


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    monkeypatch.setattr(repeat, "_SWEPT_BLOCKS", 4)  # the exact sweep takes 5 ms a block


GLOBS = ["*self_attn*", "*shared_experts*", "*.layers.0.*", "*lm_head*", "vision_tower*", "mm_projector*"]


@pytest.fixture
def copy(made, tmp_path):
    """A copy of an output, to damage."""

    def make(name):
        return shutil.copytree(made / name, tmp_path / name)

    return make


def failed(made, out, **options):
    """Audit with and without the source; return what failed with it, and without it."""
    found = audit(out, against=made / "source", **options)
    assert found.checks == EVERY
    for finding in found.findings:
        assert finding.level != "bad" or (finding.text and finding.why and finding.fix)
    return found.failed, audit(out).failed


def edit_shard(out, shard, change):
    """Rewrite a shard after a change to its tensors: name -> (dtype, shape, bytes)."""
    path = out / shard
    raw = path.read_bytes()
    tensors = {n: (t.dtype, t.shape, raw[t.begin : t.end]) for n, t in read_header(path, shard).items()}
    change(tensors)
    head, infos = lay_out([TensorSpec(n, dtype, shape) for n, (dtype, shape, _) in tensors.items()], shard)
    path.write_bytes(head + b"".join(tensors[info.name][2] for info in infos))


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def settle(out):
    """Let index, journal and plan agree with the shards as they are now, so that only the contents are wrong."""
    shards = sorted(path.name for path in out.glob("*.safetensors"))
    headers = {shard: read_header(out / shard, shard) for shard in shards}
    total = sum(tensor.nbytes for header in headers.values() for tensor in header.values())
    weight_map = {name: shard for shard, header in headers.items() for name in header}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    hashes = {shard: hashlib.sha256((out / shard).read_bytes()).hexdigest() for shard in shards}
    lines = [json.dumps({"shard": shard, "sha256": digest}) for shard, digest in hashes.items()]
    (out / "halfbyte" / "journal.jsonl").write_text("\n".join(lines))
    sizes = {shard: (out / shard).stat().st_size for shard in shards}
    edit_json(out / "halfbyte" / "plan.json", lambda plan: plan.update(shards=sizes))


def with_byte(name, byte, at=0):
    def change(tensors):
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data[:at] + bytes([byte]) + data[at + 1 :])

    return change


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_what_a_recipe_makes_passes_every_check(made, name):
    found = audit(made / name, against=made / "source", sample=100)
    assert [(f.check, f.text) for f in found.findings if f.level != "good"] == []
    assert found.checks == EVERY
    alone = audit(made / name)
    assert [f.check for f in alone.findings if f.level != "good"] == ["kept", "repeat"]
    assert all(f.level == "note" for f in alone.findings if f.level != "good")


@pytest.mark.parametrize("kind", ["int4-k2-thinking", "fp8-block-k2", "fp8-channel", "spread", "int4-g64"])
def test_other_sources_pass_too(tmp_path, kind):
    source = write_pico(tmp_path / "source", kind)
    decode = [f"roles.{role}=bf16" for role in ("shared_experts", "dense_mlp", "attention") if kind.startswith("fp8")]
    quantize(source, tmp_path / "out", load_recipe("kimi-k2.6-nvfp4a16", decode), layers=2)
    assert audit(tmp_path / "out", against=source, sample=100).failed == []


# --- contents ---------------------------------------------------------------------------------------------------------


def test_a_missing_scale_is_structure(made, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, lambda tensors: tensors.pop(f"{EXPERT}.up_proj.weight_scale"))
    settle(out)
    assert failed(made, out) == (["structure"], ["structure"])


def test_an_extra_tensor_is_structure(made, copy):
    out = copy("nvfp4a16")
    extra = ("BF16", (4,), bytes(8))
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({f"{LAYER}.mlp.gate.weight_scale": extra}))
    settle(out)
    assert failed(made, out) == (["structure"], ["structure"])


def test_a_missing_expert_is_structure(made, copy):
    out = copy("bf16")
    edit_shard(out, LAYER_1, lambda t: [t.pop(f"{EXPERT}.{leaf}_proj.weight") for leaf in ("gate", "up", "down")])
    settle(out)
    assert failed(made, out) == (["structure"], ["structure"])


def test_missing_input_scales_are_structure(made, copy):
    out = copy("modelopt")

    def promise(config):
        group = config["quantization_config"]["config_groups"]["group_0"]
        group["input_activations"] = group["weights"]

    edit_json(out / "config.json", promise)
    assert failed(made, out) == (["structure", "config"], ["structure"])  # the key is also not as planned


def test_a_linear_in_another_format_is_coverage(made, copy):
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


def test_an_expert_that_stayed_bf16_is_coverage(made, copy):
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
def test_a_list_that_matches_other_modules_is_ignore(made, copy, name, key, change):
    out = copy(name)
    edit_json(out / "config.json", lambda config: change(config["quantization_config"][key]))
    if name == "modelopt":
        edit_json(out / "hf_quant_config.json", lambda config: change(config["quantization"]["exclude_modules"]))
    assert failed(made, out) == (["ignore"], ["ignore"])


def test_two_lists_that_differ_are_config(made, copy):
    out = copy("modelopt")
    edit_json(out / "hf_quant_config.json", lambda config: config["quantization"]["exclude_modules"].append("ghost*"))
    assert failed(made, out) == (["config"], ["config"])


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
def test_a_scale_that_is_not_finite_and_positive_is_scales(made, copy, name, tensor, bytes_):
    out = copy(name)
    for at, byte in bytes_.items():
        edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.down_proj.{tensor}", byte, at))
    settle(out)
    assert failed(made, out, sample=0) == (["scales"], ["scales"])


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_a_tensor_scale_that_is_not_finite_and_positive_is_scales(made, copy, value):
    out = copy("modelopt")
    name, data = f"{EXPERT}.down_proj.weight_scale_2", np.float32(value).tobytes()
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({name: ("F32", (), data)}))
    settle(out)
    assert failed(made, out, sample=0) == (["scales"], ["scales"])


def test_zero_block_scales_are_counted_and_noted(made, copy):
    out = copy("nvfp4a16")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.down_proj.weight_scale", 0))
    settle(out)
    scales = next(finding for finding in audit(out).findings if finding.check == "scales")
    assert (scales.level, "1 of 3,072 block scales at zero" in scales.text) == ("note", True)


@pytest.mark.parametrize(
    ("name", "suffix", "shape"), [("nvfp4a16", "weight_global_scale", (1,)), ("modelopt", "weight_scale_2", ())]
)
def test_an_unequal_pair_is_fused(made, copy, name, suffix, shape):
    out = copy(name)
    data = np.float32(17).tobytes()
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({f"{EXPERT}.up_proj.{suffix}": ("F32", shape, data)}))
    settle(out)
    assert failed(made, out, sample=0) == (["fused"], ["fused"])


def test_a_flipped_byte_in_a_kept_tensor_is_kept(made, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, with_byte(f"{LAYER}.self_attn.o_proj.weight", 0x55, at=100))
    settle(out)
    assert failed(made, out, sample=100) == (["kept"], [])


@pytest.mark.parametrize("change", [lambda path: path.write_text("other"), lambda path: path.unlink()])
def test_a_file_that_was_not_copied_is_kept(made, copy, change):
    out = copy("mxfp4-wafer")
    change(out / "chat_template.jinja")
    assert failed(made, out) == (["kept"], [])


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_a_flipped_code_is_repeat(made, copy, name):
    out = copy(name)
    suffix = "weight_packed" if name == "nvfp4a16" else "weight"
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.{suffix}", 0x31, at=9))
    settle(out)
    assert failed(made, out, sample=100) == (["repeat"], [])


def test_a_swept_scale_is_repeated_on_the_exact_reference(made, copy):
    out = copy("modelopt")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.weight_scale", 0x11))
    settle(out)
    assert failed(made, out, sample=100) == (["repeat"], [])


def test_the_sample_is_so_many_of_each_layer(made):
    texts = {n: audit(made / "mxfp4-wafer", against=made / "source", sample=n).findings[-1].text for n in (0, 1, 3)}
    assert texts[0].startswith("not checked")
    assert texts[1].startswith("2 linears")
    assert texts[3].startswith("6 linears")


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_truncated_shard_is_bytes(made, copy):
    out = copy("mxfp4-wafer")
    data = (out / LAYER_1).read_bytes()
    (out / LAYER_1).write_bytes(data[:-1000])
    assert failed(made, out) == (["bytes"], ["bytes"])


def test_a_hash_that_is_not_the_journals_is_bytes(made, copy):
    out = copy("mxfp4-wafer")
    edit_shard(out, LAYER_1, with_byte(f"{EXPERT}.up_proj.weight", 0x31, at=9))
    assert failed(made, out, sample=0) == (["bytes"], ["bytes"])


@pytest.mark.parametrize("journal", ["", '{"shard": "torn'])
def test_a_shard_without_a_line_in_the_journal_is_bytes(made, copy, journal):
    out = copy("mxfp4-wafer")
    (out / "halfbyte" / "journal.jsonl").write_text(journal)
    assert failed(made, out) == (["bytes"], ["bytes"])


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["metadata"].update(total_size=1),
        lambda index: index["metadata"].pop("total_size"),
        lambda index: index["weight_map"].pop(f"{EXPERT}.up_proj.weight"),
        lambda index: index["weight_map"].update({f"{EXPERT}.up_proj.weight": "model-00001-of-000006.safetensors"}),
        lambda index: index["weight_map"].update({"ghost": "../ghost.safetensors"}),
        lambda index: index.update(weight_map=[]),
    ],
)
def test_an_index_that_does_not_tell_the_shards_is_index(made, copy, change):
    out = copy("mxfp4-wafer")
    edit_json(out / "model.safetensors.index.json", change)
    assert failed(made, out) == (["index"], ["index"])


def test_no_index_or_a_broken_one_is_index(made, copy):
    out = copy("mxfp4-wafer")
    (out / "model.safetensors.index.json").write_text("{")
    assert failed(made, out) == (["index"], ["index"])
    (out / "model.safetensors.index.json").unlink()
    assert failed(made, out) == (["index"], ["index"])


@pytest.mark.parametrize("name", ["model-00009-of-000006.safetensors.part", "halfbyte/audit.json.part"])
def test_a_part_left_over_is_index(made, copy, name):
    out = copy("mxfp4-wafer")
    (out / name).write_bytes(b"half")
    assert failed(made, out) == (["index"], ["index"])


# --- config -----------------------------------------------------------------------------------------------------------


def nested(config):
    config["text_config"]["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}


@pytest.mark.parametrize("name", [*RECIPES, "modelopt"])
def test_a_stale_block_in_the_text_config_is_config(made, copy, name):
    out = copy(name)
    edit_json(out / "config.json", nested)
    alone = ["config"] if name != "bf16" else ["ignore", "config"]  # without a block above it, it is the one in force
    assert failed(made, out) == (alone, alone)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["quantization_config"].update(format="pack-quantized"),
        lambda config: config["text_config"].update(n_routed_experts=8),
        lambda config: config["text_config"].update(num_hidden_layers=2),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_config(made, copy, change):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", change)
    assert failed(made, out) == (["config"], ["config"])


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["text_config"].pop("n_group"),
        lambda config: config["text_config"].update(model_type="deepseek_v3"),
        lambda config: config.update(added=1),
    ],
)
def test_a_key_that_is_not_the_sources_is_config(made, copy, change):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", change)
    assert failed(made, out) == (["config"], [])


def test_a_missing_block_is_config(made, copy):
    out = copy("nvfp4a16")
    edit_json(out / "config.json", lambda config: config.pop("quantization_config"))
    assert failed(made, out) == (["config"], ["config"])


def test_a_stale_file_of_modelopt_is_config(made, copy):
    out = copy("nvfp4a16")
    (out / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert failed(made, out) == (["config"], ["config"])


@pytest.mark.parametrize("text", [None, "{", "[]", '{"model_type": "gpt2"}'])
def test_without_a_config_the_rest_says_that_it_was_not_checked(made, copy, text):
    out = copy("nvfp4a16")
    (out / "config.json").unlink()
    if text:
        (out / "config.json").write_text(text)
    found = audit(out, against=made / "source")
    assert found.failed == ["config"]
    assert [f.check for f in found.findings if f.level == "good"] == ["plan", "index", "bytes"]


# --- plan and folder --------------------------------------------------------------------------------------------------


def test_a_recipe_that_was_changed_is_plan(made, copy):
    out = copy("nvfp4a16")
    edit_json(out / "halfbyte" / "plan.json", lambda plan: plan["recipe"].update(shards="5GB"))
    assert audit(out).failed == ["plan"]
    (out / "halfbyte" / "plan.json").write_text("{}")
    assert audit(out).failed == ["plan"]


def test_a_folder_that_others_made_is_audited_as_far_as_that_goes(tmp_path):
    out = write_pico(tmp_path / "theirs")
    found = audit(out)
    assert found.failed == []
    assert {f.check for f in found.findings if f.level == "note"} == {"plan", "coverage", "kept", "repeat"}
    assert save(found) is None
    assert not (out / "halfbyte").exists()


def test_another_source_is_the_callers_mistake(made, tmp_path):
    other = write_pico(tmp_path / "other", experts=8)
    with pytest.raises(UsageError, match="not the source"):
        audit(made / "mxfp4-wafer", against=other)


def test_a_folder_without_weights_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        audit(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no weights"):
        audit(tmp_path)


def test_the_command_shows_a_line_a_check_and_writes_audit_json(made, copy, capsys):
    out = copy("nvfp4a16")
    assert cli.run(["audit", str(out), "--against", str(made / "source")]) == 0
    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()] == [["✓", name] for name in EVERY]
    saved = json.loads((out / "halfbyte" / "audit.json").read_text())
    assert saved["passed"] is True
    assert saved["versions"]["halfbyte"]
    assert [finding["check"] for finding in saved["findings"]] == EVERY


def test_the_command_says_why_and_how_to_mend_it(copy, capsys):
    out = copy("nvfp4a16")
    data = np.float32(17).tobytes()
    name = f"{EXPERT}.up_proj.weight_global_scale"
    edit_shard(out, LAYER_1, lambda tensors: tensors.update({name: ("F32", (1,), data)}))
    settle(out)
    assert cli.run(["audit", str(out)]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("✗ fused"))
    assert f"{EXPERT}.*.weight_global_scale" in lines[at + 1]
    assert lines[at + 2].split()[0] == "why"
    assert lines[at + 3].split()[0] == "fix"
    assert "✗ 1 of 11 checks failed: fused" in printed.err
    assert json.loads((out / "halfbyte" / "audit.json").read_text())["passed"] is False
    assert cli.run(["audit", "--json", str(out)]) == 1
    assert json.loads(capsys.readouterr().out)["passed"] is False
