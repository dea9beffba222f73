"""`halfbyte inspect`: published numbers to the byte, on every kind of checkpoint, and clear errors for bad ones."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pico import KINDS
from test_imports import loaded_by

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.errors import RecipeError
from halfbyte.families.examples import example
from halfbyte.inspect.inspection import inspect
from halfbyte.recipe.load import load_recipe, recipe_names
from halfbyte.ui.units import count, size


@pytest.fixture(scope="module")
def k26():
    return inspect(example("kimi-k2.6"))


def test_parameters_as_people_count_them(k26):
    assert k26.parameters == 1_026_879_376_368
    assert k26.parameters - k26.vision_parameters == 1_026_408_232_448
    assert k26.active_parameters == 31_687_072_768 + 60 * 384  # with the routers' biases
    assert k26.elements == sum((12_193_352_688, 1_014_686_023_680 * 5 // 32, 2 * 69_120))


def test_every_role_has_its_published_share(k26):
    assert {row.role: row.parameters for row in k26.roles} == {
        "routed_experts": 1_014_686_023_680,
        "attention": 6_168_444_928,
        "shared_experts": 2_642_411_520,
        "embed": 1_174_405_120,
        "head": 1_174_405_120,
        "dense_mlp": 396_361_728,
        "router": 165_150_720 + 23_040,
        "norm": 1_006_592,
        "vision": 416_866_032,
        "projector": 54_277_888,
    }
    assert sum(row.nbytes for row in k26.roles) == k26.nbytes == 595_148_192_736
    assert sum(row.tensors for row in k26.roles) == k26.tensors == 208_550
    experts = k26.roles[0]
    assert (experts.stored_as, round(experts.bits_per_weight, 3)) == (("int4 g32",), 4.5)


def test_what_recipes_would_make_of_it_is_what_was_published(k26):
    sizes = {gain.recipe: gain.nbytes for gain in k26.recipes}
    assert sizes.keys() == set(recipe_names())
    assert sizes["kimi-k2.6-bf16"] == 2_053_758_798_816
    assert sizes["kimi-k2.6-nvfp4-wafer"] == 590_779_958_144
    assert sizes["kimi-k2.6-nvfp4-nvidia"] == 595_148_193_224 - 2 * 61 * 4  # without KV scales
    assert sizes["kimi-k2.6-mxfp4-wafer"] == 563_438_701_536
    assert sizes["kimi-k2.6-nvfp4-reap192"] == 309_602_275_296
    elements = {gain.recipe: gain.elements for gain in k26.recipes}
    assert count(elements["kimi-k2.6-mxfp4-wafer"], 0) == "551 B"  # as the Hub shows wafer's card
    assert elements["kimi-k2.6-bf16"] == k26.parameters


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_recipe_would_make_is_what_its_plan_writes(pico, kind):
    from halfbyte.families.model import describe
    from halfbyte.plan.rules import make_jobs
    from halfbyte.recipe.load import load_recipe

    checkpoint = open_checkpoint(pico(kind, hidden=64, expert_width=64))
    found, model = inspect(checkpoint), describe(checkpoint)
    compared = 0
    for gain in found.recipes:
        recipe = load_recipe(gain.recipe)
        if recipe.prune is None:
            if gain.nbytes is None:
                with pytest.raises(RecipeError):
                    make_jobs(model, recipe)
            else:
                assert gain.nbytes == sum(job.write_nbytes for job in make_jobs(model, recipe)), gain.recipe
            compared += 1
    assert compared == len(recipe_names()) - 1
    applies = {gain.recipe for gain in found.recipes if gain.nbytes is not None}
    assert "kimi-k2.6-bf16" in applies and "kimi-k2.6-nvfp4-reap192" not in applies  # which keeps 192 of 4 experts


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_shown(pico, halfbyte, kind):
    code, out, err = halfbyte("inspect", str(pico(kind)))
    assert code == 0, out + err
    row = KINDS[kind]
    name = f"int4 g{row.group}" if row.format == "int4" else row.format
    experts = next(line for line in out.splitlines() if line.startswith("routed_experts"))
    assert name in experts
    assert "✗" not in out
    assert "next: halfbyte " in err


def test_the_next_command_plans_a_recipe_that_keeps_every_expert(pico, halfbyte):
    folder = pico()
    err = halfbyte("inspect", str(folder))[2]
    recipe = err.rpartition(" -r ")[2].strip()
    assert err.splitlines()[-1] == f"next: halfbyte plan {folder} -r {recipe}"
    assert load_recipe(recipe).prune is None
    last = halfbyte("inspect", "--example", "kimi-k2.6")[2].splitlines()[-1]
    assert last == "next: halfbyte plan --example kimi-k2.6 -r kimi-k2.6-mxfp4-wafer"


def test_json_is_the_same_value(pico, halfbyte):
    folder = pico("nvfp4")
    code, out, _ = halfbyte("inspect", str(folder), "--json")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(inspect(open_checkpoint(folder)).as_dict()))


def test_tensors_by_glob(pico, halfbyte):
    folder = pico("int4-k2.6")
    code, out, _ = halfbyte("inspect", str(folder), "--tensors", "*.experts.3.up_proj.*", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"].rpartition("layers.")[2] for row in rows] == [
        f"{layer}.mlp.experts.3.up_proj.weight_{part}" for layer in (1, 2) for part in ("packed", "scale", "shape")
    ]
    assert rows[0] | {"name": ""} == {
        "name": "",
        "role": "routed_experts",
        "format": "int4",
        "dtype": "I32",
        "shape": [32, 8],
        "nbytes": 1024,
        "shard": "model-00002-of-000006.safetensors",
    }
    _, out, _ = halfbyte("inspect", str(folder), "--tensors", "*norm.weight")
    assert "[64]" in out.splitlines()[1]


def test_a_glob_that_matches_nothing(pico, halfbyte):
    code, _, err = halfbyte("inspect", str(pico()), "--tensors", "*.expert.*")
    assert code == 2
    assert "no tensor matches '*.expert.*'" in err
    assert "example of a name: 'language_model." in err


def test_the_example_needs_no_files(halfbyte):
    code, out, err = halfbyte("inspect", "--example", "kimi-k2.6")
    assert code == 0
    assert "1.026 T, plus 471.14 M for vision; 31.69 B active per token" in out
    assert "61 (1 dense, 60 MoE); 384 experts, top-8, 1 shared" in out
    assert "nvfp4 keeps the size and enables FP4 tensor cores, mxfp4 saves 31.7 GB" in out
    assert err.startswith("read nothing in ")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "no checkpoint specified"),
        (("somewhere", "--example", "kimi-k2.6"), "a checkpoint and an example cannot be combined"),
        (("--example", "kimi-2.6"), "did you mean 'kimi-k2.6'?"),
        (("nowhere",), "the folder does not exist"),
    ],
)
def test_bad_arguments(halfbyte, argv, sentence):
    code, out, err = halfbyte("inspect", *argv)
    assert (code, out) == (2, "")
    assert sentence in err


def edit_config(folder, edit):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("kind", "edit", "sentence"),
    [
        (
            "int4-k2.6",
            lambda config: config["text_config"].pop("quantization_config"),
            "config.json has no quantization_config, but the tensors are int4: engines cannot load it",
        ),
        (
            "mxfp4",
            lambda config: config.update(quantization_config={"quant_method": "fp8"}),
            "config.json declares fp8, which means fp8_block, but the tensors are mxfp4",
        ),
        (
            "bf16",
            lambda config: config.update(quantization_config={"quant_method": "modelopt"}),
            "config.json declares modelopt, which means nvfp4, but the tensors are unquantized",
        ),
    ],
)
def test_a_format_that_config_does_not_declare_is_a_failed_check(pico, halfbyte, kind, edit, sentence):
    folder = pico(kind)
    edit_config(folder, edit)
    code, out, err = halfbyte("inspect", str(folder))
    assert code == 1
    assert f"✗ {sentence}" in out
    assert sentence in err


def test_what_is_odd_but_harmless_is_a_note(pico, halfbyte):
    folder = pico("nvfp4")
    edit_config(folder, lambda config: config.pop("quantization_config"))
    (folder / "model.safetensors.index.json").write_text(
        (folder / "model.safetensors.index.json").read_text().replace('"total_size": ', '"total_size": 1')
    )
    (folder / "old.safetensors").write_bytes(b"")
    code, out, _ = halfbyte("inspect", str(folder))
    assert code == 0
    assert "! hf_quant_config.json, not config.json, declares nvfp4" in out
    assert "! the index gives 1" in out
    assert "! 'old.safetensors' in the folder, but not in the index: ignored" in out
    edit_config(folder, lambda config: config.update(quantization_config={"quant_method": "awq"}))
    assert "! config.json declares awq, which halfbyte does not support" in halfbyte("inspect", str(folder))[1]


def test_four_bit_experts_have_nothing_to_gain_and_others_do(pico):
    def advice(kind):
        return [text for level, text in inspect(open_checkpoint(pico(kind))).verdicts if "already" in text]

    assert advice("nvfp4")[0].startswith("the experts are already NVFP4; mxfp4 saves ")
    assert "enables FP4 tensor cores" in advice("int4-k2.6")[0]
    assert "mxfp4 saves nothing" in advice("mxfp4_ct")[0]
    assert advice("bf16") == advice("fp8-block-k2") == []


def test_what_becomes_larger_is_not_called_saved(pico, halfbyte):
    _, out, _ = halfbyte("inspect", pico("mxfp4_ct"))
    assert "nvfp4 costs " in out
    assert "saves -" not in out


def test_layers_for_multi_token_prediction_are_not_active(pico):
    checkpoint = open_checkpoint(pico("bf16"))
    fewer = replace(checkpoint, config={**checkpoint.config, "num_hidden_layers": 2, "num_nextn_predict_layers": 1})
    assert inspect(fewer).parameters == inspect(checkpoint).parameters
    assert inspect(fewer).active_parameters < inspect(checkpoint).active_parameters


def test_inspect_loads_neither_torch_nor_numba_nor_numpy(pico):
    code = f"from halfbyte.cli.main import run; run(['inspect', {str(pico())!r}])"
    assert loaded_by(code) <= {"pydantic", "yaml"}


@pytest.mark.slow
def test_headers_of_the_whole_model_in_seconds_and_a_quarter_of_a_gigabyte(tmp_path):
    import resource
    import time
    from pathlib import Path

    program = Path(__file__).parents[2] / "benchmarks" / "synth.py"
    subprocess.run([sys.executable, program, "--headers-only", tmp_path], check=True)
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "halfbyte", "inspect", tmp_path], check=True)
    assert time.perf_counter() - start < 5
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 10**6  # kB


def test_units():
    assert [size(n) for n in (0, 999, 149_000, 1_500_000, 833_700_000, 595_148_192_736, -31_709_491_200)] == [
        "0 bytes", "999 bytes", "149.0 kB", "1.5 MB", "833.7 MB", "595.1 GB", "-31.7 GB",
    ]  # fmt: skip
    assert [count(n, 2) for n in (7, 1500, 31_687_072_768, 1_026_408_232_448)] == ["7", "1.50 k", "31.69 B", "1.03 T"]
    assert count(1_014_686_023_680, largest="B") == "1,014.7 B"


@pytest.mark.parametrize("recipe", ["kimi-k2.6-mxfp4-wafer", "kimi-k2.6-nvfp4a16", "kimi-k2.6-bf16"])
def test_an_output_has_the_size_that_its_plan_states(recipe):
    from halfbyte.engine.pipeline import plan
    from halfbyte.recipe.load import load_recipe

    checkpoint = open_checkpoint(Path(__file__).parents[2] / "models" / "kimi-mini")
    gain = next(gain for gain in inspect(checkpoint).recipes if gain.recipe == recipe)
    written = plan(checkpoint, load_recipe(recipe)).write_nbytes
    assert gain.nbytes + gain.header_nbytes == pytest.approx(written, rel=0.0005)  # the headers are 0.5 % of it
    assert gain.nbytes != pytest.approx(written, rel=0.0005)


def test_a_recipe_that_prunes_is_offered_only_where_it_can_run(pico):
    reap = "kimi-k2.6-nvfp4-reap192"

    def offered(checkpoint):
        return next(gain for gain in inspect(checkpoint).recipes if gain.recipe == reap)

    assert offered(example("kimi-k2.6")).why_not is None
    small = offered(open_checkpoint(pico("int4-k2.6")))
    assert (small.nbytes, small.why_not) == (None, "keeps 192 experts, but there are 4")
