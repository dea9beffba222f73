"""Two checkpoints side by side: same bytes, same value, different, missing."""

import json

import numpy as np
import pytest
from pico import write_pico
from safetensors.torch import load_file, save_file

from halfbyte import cli
from halfbyte.audit.diff import diff
from halfbyte.pipeline import quantize
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


def test_what_one_side_lacks_is_missing(folders, tmp_path):
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
    assert "same value   24" in capsys.readouterr().out
    assert cli.run(["diff", "--json", str(folders / "source"), str(folders / "mxfp4-wafer")]) == 1
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["different"]) == 24
    assert printed.err.startswith("✗ the checkpoints are not the same model")
