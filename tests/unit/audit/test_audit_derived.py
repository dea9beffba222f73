"""`audit OUT --against SRC` without `halfbyte/`: the plan is derived and every tensor checked, or nothing is proven."""

import json
import shutil

import numpy as np
import pytest
from mutations import ANY, QUANTIZED, TENSOR_SCALE, Build
from pico import write_pico

from halfbyte.audit.run import audit
from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.cli import main as cli
from halfbyte.engine.pipeline import quantize
from halfbyte.families.model import describe
from halfbyte.plan.prune_plan import LayerChoice, PrunePlan
from halfbyte.plan.pruned import router_shape
from halfbyte.prune.options import recipe_of_plan
from halfbyte.recipe.load import load_recipe

MODELOPT = ["quantize.format=nvfp4", "quantize.kv_cache=none", 'quantize.config.producer_version="0.47.0"']
GLOBS = ["*self_attn*", "*shared_experts*", "*.layers.0.*", "*lm_head*", "vision_tower*", "mm_projector*"]
MODELOPT += [f"quantize.config.ignore_patterns={json.dumps(GLOBS)}"]
RECIPES = {
    "nvfp4": ("kimi-k2.6-nvfp4a16", [*MODELOPT, "quantize.scales=max"]),
    "nvfp4-mse": ("kimi-k2.6-nvfp4a16", [*MODELOPT, "quantize.scales=mse"]),
    "nvfp4_ct": ("kimi-k2.6-nvfp4a16", []),
    "mxfp4": ("kimi-k2.6-mxfp4-wafer", []),
    "fp8": ("kimi-k2.6-fp8-reference", []),
    "bf16": ("kimi-k2.6-bf16", []),
}
KEPT = {1: (0, 2, 3, 5), 2: (1, 2, 4, 5)}
FORMATS_WITH_SCALES = ("nvfp4", "nvfp4_ct", "mxfp4", "fp8")
TABLE = [(build, name) for build in (*FORMATS_WITH_SCALES, "bf16", "pruned") for name in ANY]
TABLE += [(build, name) for build in FORMATS_WITH_SCALES for name in QUANTIZED]
TABLE += [(build, name) for build in ("nvfp4", "nvfp4_ct") for name in TENSOR_SCALE]
NOT_THERE = {
    ("fp8", "swapped nibbles"),  # bytes are complete codes, and the same mutation changes them
    ("fp8", "another block size in the config"),  # one scale a row
    ("pruned", "an expert twice"),  # expert 3 is another one there; see the table of pruned builds
}
TABLE = [row for row in TABLE if row not in NOT_THERE]


@pytest.fixture(scope="session")
def stripped(tmp_path_factory):
    """A source, and the output of each recipe, without `halfbyte/`."""
    root = tmp_path_factory.mktemp("derived")
    source = write_pico(root / "source", experts=6)
    for name, (recipe, changes) in RECIPES.items():
        quantize(source, root / name, load_recipe(recipe, changes))
    checkpoint = open_checkpoint(source)
    layers = {layer: LayerChoice(kept) for layer, kept in KEPT.items()}
    plan = PrunePlan(router=router_shape(describe(checkpoint), checkpoint.config), layers=layers, rule=None)
    quantize(source, root / "pruned", recipe_of_plan(plan, "layers"), prune_plan=plan)
    for name in (*RECIPES, "pruned"):
        shutil.rmtree(root / name / "halfbyte")
    return root


@pytest.fixture
def build(stripped, tmp_path):
    return lambda name: Build(shutil.copytree(stripped / name, tmp_path / name))


@pytest.mark.parametrize("name", [*RECIPES, "pruned"])
def test_a_clean_build_passes(stripped, name, capsys):
    code = cli.run(["audit", str(stripped / name), "--against", str(stripped / "source")])
    printed = capsys.readouterr()
    assert code == 0, printed
    assert "derived from both checkpoints" in printed.out + printed.err
    assert not (stripped / name / "halfbyte").exists()  # nothing is written into what halfbyte did not make


@pytest.mark.parametrize(("name", "mutation"), TABLE, ids=lambda word: word.replace(" ", "-"))
def test_a_mutation_is_found(stripped, build, name, mutation):
    output = build(name)
    {**ANY, **QUANTIZED, **TENSOR_SCALE}[mutation](output)
    output.write()
    found = audit(output.folder, against=stripped / "source")
    assert found.failed, found.sentences()


def test_what_a_derived_plan_says(stripped):
    found = {f.check: f for f in audit(stripped / "nvfp4-mse", against=stripped / "source").findings}
    assert "routed experts nvfp4 by mse, everything else unchanged" in found["plan"].text
    assert "36 linears re-encoded from the source (mse): bit-equal" in found["encoded"].text
    found = {f.check: f for f in audit(stripped / "pruned", against=stripped / "source").findings}
    assert "4 of 6 experts kept" in found["plan"].text
    assert found["prune"].level == "good"


def test_without_a_source_nothing_is_derived(stripped):
    found = audit(stripped / "nvfp4")
    assert found.passed
    assert "pass --against SRC" in {f.check: f for f in found.findings}["kept"].text


def requantized(build, source):
    """Write block scales that no known method chooses, and the nearest codes for them."""
    from halfbyte.audit.reencode_sample import decode
    from halfbyte.checkpoint.reader import Reader
    from halfbyte.families.linears import read_linear
    from halfbyte.formats.reference import nvfp4

    model = describe(open_checkpoint(source))
    with Reader(open_checkpoint(source)) as reader:
        for module, linear in model.linears.items():
            if linear.role == "routed_experts":
                weight = decode(read_linear(linear, reader))
                dtype, shape, data = build.tensors[f"{module}.weight_scale"]
                scale = np.maximum(np.frombuffer(bytes(data), np.uint8).reshape(shape), 2) - 1
                decode_scale_2 = np.frombuffer(bytes(build.tensors[f"{module}.weight_scale_2"][2]), np.float32)[0]
                build.tensors[f"{module}.weight_scale"] = (dtype, shape, bytearray(scale.tobytes()))
                packed = nvfp4.codes(weight, scale, decode_scale_2)
                build.tensors[f"{module}.weight"] = (
                    *build.tensors[f"{module}.weight"][:2],
                    bytearray(packed.tobytes()),
                )
    build.write()


def test_an_unknown_method_is_within_bounds_and_not_proven(stripped, build, capsys):
    output = build("nvfp4")
    requantized(output, stripped / "source")
    found = audit(output.folder, against=stripped / "source")
    assert (found.failed, found.not_proven, found.passed) == ([], ["encoded"], False)
    assert cli.run(["audit", str(output.folder), "--against", str(stripped / "source")]) == 1
    printed = capsys.readouterr()
    assert "not proven: 36 linears within the error bounds of the format" in printed.out
    assert "1 of 13 checks not proven: encoded" in printed.err


@pytest.mark.parametrize(
    "mutation", ["two experts swapped", "gate and up swapped", "an expert twice", "codes of zero", "swapped nibbles"]
)
def test_bounds_find_wrong_weights_of_an_unknown_method(stripped, build, mutation):
    output = build("nvfp4")
    requantized(output, stripped / "source")
    {**ANY, **QUANTIZED}[mutation](output)
    output.write()
    assert "encoded" in audit(output.folder, against=stripped / "source").failed


def test_bounds_find_a_doubled_tensor_scale_and_a_wild_block_scale(stripped, build):
    for change in (TENSOR_SCALE["a doubled tensor scale"], lambda b: b.add_to_byte(b.scale(), -24)):
        output = Build(stripped / "nvfp4")
        output.folder = build("nvfp4").folder
        requantized(output, stripped / "source")
        change(output)
        output.write()
        assert "encoded" in audit(output.folder, against=stripped / "source").failed
        shutil.rmtree(output.folder)


def with_input_scales(output, value):
    for names in output.shards.values():
        for name in [name for name in names if name.endswith("weight_scale_2")]:
            scale = name.replace("weight_scale_2", "input_scale")
            names.append(scale)
            output.tensors[scale] = ("F32", (), bytearray(np.float32(value).tobytes()))
    group = output.config["quantization_config"]["config_groups"]["group_0"]
    group["input_activations"] = group["weights"]
    output.config["quantization_config"]["quant_algo"] = "NVFP4"  # not W4A16_NVFP4: inputs are quantized too
    output.write()
    file = output.folder / "hf_quant_config.json"
    file.write_text(file.read_text().replace("W4A16_NVFP4", "NVFP4"))


@pytest.mark.parametrize(("value", "unproven"), [(0.5, ["calibration"]), (1.0, [])])
def test_calibrated_scales_without_statistics_are_not_proven(stripped, build, value, unproven):
    output = build("nvfp4")
    with_input_scales(output, value)
    found = audit(output.folder, against=stripped / "source")
    assert (found.failed, found.not_proven) == ([], unproven)


def test_another_source_is_not_proven_or_fails(stripped, tmp_path):
    other = write_pico(tmp_path / "other", experts=6, seed=1)
    assert {"kept", "encoded"} <= set(audit(stripped / "nvfp4", against=other).failed) | {"encoded"}
    qwen = write_pico(tmp_path / "qwen", "qwen3-moe")
    found = audit(stripped / "nvfp4", against=qwen)
    assert (found.not_proven, found.passed) == (["plan"], False)


@pytest.mark.parametrize(
    "block", [{"config_groups": [1]}, {"quant_method": "quark", "global_quant_config": "x"}, {"ignore": 3}]
)
def test_a_malformed_block_is_not_proven(stripped, build, block):
    output = build("nvfp4")
    (output.folder / "hf_quant_config.json").unlink()
    output.config["quantization_config"] = block
    output.write()
    from halfbyte.audit.inputs import DERIVED, gather

    assert (
        gather(output.folder, stripped / "source").problems[DERIVED]
        == "the quantization block of config.json is malformed"
    )


def test_a_format_that_halfbyte_does_not_write_is_not_proven(tmp_path):
    source = write_pico(tmp_path / "source", "int4-k2-thinking")
    output = write_pico(tmp_path / "output", "fp8-block-k2")
    found = audit(output, against=source)
    assert (found.not_proven, found.passed) == (["plan"], False)
