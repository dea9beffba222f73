"""Two checkpoints side by side: same bytes, same value, different, missing."""

import json
import shutil

import numpy as np
import pytest
from pico import write_pico
from safetensors.torch import load_file, save_file

from halfbyte.audit.diff import diff
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe

EXPERT = "language_model.model.layers.1.mlp.experts.2.up_proj"
LAYER_1 = "model-00002-of-000006.safetensors"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("diff")
    source = write_pico(root / "source")
    for name in ("bf16", "mxfp4-wafer"):
        quantize(source, root / name, load_recipe(f"kimi-k2.6-{name}"))
    return root


def change(folder, shard, edit):
    tensors = load_file(folder / shard)
    edit(tensors)
    save_file(tensors, folder / shard)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    kept = {name: at for name, at in index["weight_map"].items() if at != shard}
    index["weight_map"] = {**kept, **dict.fromkeys(tensors, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_checkpoint_equals_itself(folders):
    found = diff(folders / "source", folders / "source")
    assert found.equal
    assert (found.same_bytes, found.same_value) == (90, 0)


def test_int4_and_its_bf16_twin_have_the_same_value(folders):
    found = diff(folders / "source", folders / "bf16")
    assert found.equal
    assert (found.same_bytes, found.same_value) == (66, 24)


def test_mxfp4_differs_in_the_experts_alone(folders):
    found = diff(folders / "bf16", folders / "mxfp4-wafer")
    assert not found.equal
    assert (found.same_bytes, len(found.different)) == (66, 24)
    assert all(".mlp.experts." in d.name and 0 < d.max_abs < 0.05 for d in found.different)


def test_one_changed_value_is_measured(folders, tmp_path):
    other = write_pico(tmp_path / "other")

    def edit(tensors):
        tensors["language_model.model.layers.1.input_layernorm.weight"][5] += 0.5

    change(other, LAYER_1, edit)
    found = diff(folders / "source", other)
    assert [d.name for d in found.different] == ["language_model.model.layers.1.input_layernorm.weight"]
    assert found.different[0].max_abs == pytest.approx(0.5, abs=0.01)


def test_minus_zero_and_nan_are_values_like_others(tmp_path):
    a, b = (write_pico(tmp_path / name) for name in "ab")
    name = "language_model.model.layers.1.input_layernorm.weight"

    def with_value(value):
        def edit(tensors):
            tensors[name][0] = value

        return edit

    change(a, LAYER_1, with_value(0.0))
    change(b, LAYER_1, with_value(-0.0))
    assert (diff(a, b).equal, diff(a, b).same_value) == (True, 1)
    change(b, LAYER_1, with_value(float("nan")))
    assert [d.max_abs for d in diff(a, b).different] == [np.inf]
    change(a, LAYER_1, with_value(float("nan")))
    assert diff(a, b).equal


def test_tensors_of_one_side_are_missing_on_the_other(folders, tmp_path):
    other = write_pico(tmp_path / "other", "nvfp4_ct")
    found = diff(other, folders / "source")
    assert len(found.only_a) == 24
    assert all(name.endswith("input_global_scale") for name in found.only_a)
    assert found.only_b == ()


def test_a_scale_of_another_value_is_a_difference(folders, tmp_path):
    other = write_pico(tmp_path / "other")

    def edit(tensors):
        tensors[f"{EXPERT}.weight_scale"][0, 0] *= 2

    change(other, LAYER_1, edit)
    assert [d.name for d in diff(folders / "source", other).different] == [EXPERT]


def test_the_command(folders, capsys):
    assert cli.run(["diff", str(folders / "source"), str(folders / "bf16")]) == 0
    assert "same value      24" in capsys.readouterr().out
    assert cli.run(["diff", "--json", str(folders / "source"), str(folders / "mxfp4-wafer")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["different"]), found["equal"], found["planned"]) == (24, False, True)


MXFP4 = "mxfp4-wafer"


def run_diff(a, b, capsys):
    code = cli.run(["diff", "--json", str(a), str(b)])
    printed = capsys.readouterr()
    return code, json.loads(printed.out)["explained"], printed.err


@pytest.mark.parametrize("recorded", [True, False])
def test_a_perfect_build_differs_by_its_plan_alone(folders, tmp_path, capsys, recorded):
    out = shutil.copytree(folders / MXFP4, tmp_path / "out")
    if not recorded:
        shutil.rmtree(out / "halfbyte")
    code, found, error = run_diff(folders / "source", out, capsys)
    assert (code, error) == (0, "")
    assert ("recorded in B" if recorded else "derived, B from A") in found["plan"]
    loss = found["quantized"]["routed_experts"]
    assert loss["linears"] == 24
    assert 15 < loss["worst_sqnr_db"] < loss["sqnr_db"] < 25
    assert EXPERT.rpartition(".layers.")[0] in loss["worst"]
    assert found["config"] == ["quantization_config", "text_config.quantization_config"]
    assert found["not_explained"] == []
    assert cli.run(["diff", str(folders / "source"), str(out)]) == 0
    said = capsys.readouterr().out
    assert f"quantized       routed experts: 24 linears, SQNR {loss['sqnr_db']:.1f} dB, worst" in said
    assert "not explained   0" in said


def test_a_recorded_plan_is_found_in_either_order(folders, capsys):
    code, found, _ = run_diff(folders / MXFP4, folders / "source", capsys)
    assert (code, found["output"]) == (0, "A")


def double(tensors):
    tensors[f"{EXPERT}.weight_scale"] += 1  # E8M0: every weight of the expert doubles


def keep_another_norm(tensors):
    tensors["language_model.model.layers.1.input_layernorm.weight"][0] += 1


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (double, f"{EXPERT}: SQNR 0.1 dB, but mxfp4 has at least 12 dB"),
        (keep_another_norm, "layers.1.input_layernorm.weight: value, at most 0.9922 apart; the plan keeps it"),
    ],
)
def test_a_difference_that_is_not_the_plans(folders, tmp_path, capsys, edit, said, recorded):
    out = shutil.copytree(folders / MXFP4, tmp_path / "out")
    change(out, LAYER_1, edit)
    if not recorded:
        shutil.rmtree(out / "halfbyte")
    code, found, error = run_diff(folders / "source", out, capsys)
    assert code == 1
    assert len(found["not_explained"]) == 1
    assert said in found["not_explained"][0]
    assert error.startswith("✗ 1 difference not explained by the plan of B")


def test_tensors_that_are_not_in_the_plan(folders, tmp_path, capsys):
    source, out = folders / "source", shutil.copytree(folders / MXFP4, tmp_path / "out")
    for layer in range(3):  # in every layer: a tensor in only one layer is rejected
        shard = f"model-{layer + 1:05d}-of-000006.safetensors"
        name = f"language_model.model.layers.{layer}"
        change(out, shard, lambda tensors, name=name: tensors.update({f"{name}.self_attn.rotary_emb.inv_freq":
               tensors[f"{name}.input_layernorm.weight"].clone()}))  # fmt: skip
    code, found, _ = run_diff(source, out, capsys)
    assert code == 1
    assert [said.partition(" ")[2] for said in found["not_explained"]] == ["is only in B, and not in the plan"] * 3


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            lambda config: config["text_config"].update(routed_scaling_factor=9),
            "text_config.routed_scaling_factor is 9",
        ),
        (lambda config: config["quantization_config"]["exclude"].clear(), "not quantized, and not ignored"),
    ],
)
def test_a_config_key_that_is_not_the_plans(folders, tmp_path, capsys, edit, said, recorded):
    out = shutil.copytree(folders / MXFP4, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    edit(config)
    (out / "config.json").write_text(json.dumps(config))
    if not recorded:
        shutil.rmtree(out / "halfbyte")
    code, found, _ = run_diff(folders / "source", out, capsys)
    assert code == 1
    assert any(said in text for text in found["not_explained"])


def test_equal_tensors_under_another_config_are_not_the_same(folders, tmp_path, capsys):
    copy = shutil.copytree(folders / "source", tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["rope_theta"] = 1.0
    (copy / "config.json").write_text(json.dumps(config))
    code, found, _ = run_diff(folders / "source", copy, capsys)
    assert (code, len(found["not_explained"])) == (1, 1)


def test_audit_recommends_a_command_that_passes_on_a_perfect_build(folders, capsys):
    assert cli.run(["audit", str(folders / MXFP4), "--against", str(folders / "source")]) == 0
    hint = capsys.readouterr().err.splitlines()[-1]
    out = folders / MXFP4
    kept = f"-o {out}/halfbyte/compare.json"
    assert hint == f"next: halfbyte compare {folders / 'source'} {out} --data DOMAIN=FILE {kept}"


def test_audit_recommends_no_file_in_a_folder_that_does_not_exist(folders, tmp_path, capsys):
    copy = shutil.copytree(folders / MXFP4, tmp_path / "copy", ignore=shutil.ignore_patterns("halfbyte"))
    assert cli.run(["audit", str(copy), "--against", str(folders / "source")]) == 0
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint == f"next: halfbyte compare {folders / 'source'} {copy} --data DOMAIN=FILE"
