"""Input scales fixed by a recipe: the constant in every expert, no calibration data, no forward pass."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.checkpoint.reader import Reader
from halfbyte.engine.pipeline import plan, quantize
from halfbyte.families.model import describe
from halfbyte.recipe.load import load_recipe

KIMI_MINI = Path(__file__).parents[2] / "models" / "kimi-mini"
NAME = "kimi-k2.7-code-nvfp4-nvidia"
ONE = bytes.fromhex("0000803f")  # 1.0 in FP32
# PyTorch and the modules that run a model may not be imported.
_QUANTIZE = """
import sys
from pathlib import Path
class NoForward:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith(("halfbyte.forward", "halfbyte.calibrate.stream")):
            raise AssertionError(f"{name} was imported")
sys.meta_path.insert(0, NoForward())
from halfbyte.engine.pipeline import quantize
from halfbyte.recipe.load import load_recipe
result = quantize(Path(sys.argv[1]), Path(sys.argv[2]), load_recipe(sys.argv[3]))
assert result.coverage is None
"""


def input_scales(out, suffix=".input_scale"):
    """Return the bytes of every input scale, by name."""
    checkpoint = open_checkpoint(out)
    with Reader(checkpoint) as reader:
        return {name: bytes(reader.raw(info)) for name, info in checkpoint.tensors.items() if name.endswith(suffix)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("fixed") / "out"
    subprocess.run([sys.executable, "-c", _QUANTIZE, KIMI_MINI, out, NAME], check=True)
    return out


def test_every_expert_has_the_constant_and_no_torch_is_imported(made):
    experts = {
        name for name, linear in describe(open_checkpoint(KIMI_MINI)).linears.items() if linear.expert is not None
    }
    assert len(experts) > 400
    assert input_scales(made) == dict.fromkeys((f"{module}.input_scale" for module in experts), ONE)


def test_weights_are_those_of_the_max_rule(made, tmp_path):
    """Only the input scales differ from weights-only NVFP4 by max."""
    sets = ["quantize.activations=none", "quantize.input_scale=null"]
    quantize(KIMI_MINI, tmp_path / "plain", load_recipe(NAME, sets))
    ours, plain = open_checkpoint(made), open_checkpoint(tmp_path / "plain")
    assert {name for name in ours.tensors if not name.endswith(".input_scale")} == plain.tensors.keys()
    with Reader(ours) as one, Reader(plain) as other:
        for name, info in plain.tensors.items():
            assert bytes(one.raw(ours.tensors[name])) == bytes(other.raw(info)), name


def test_the_plan_needs_no_calibration():
    recipe = load_recipe(NAME)
    assert recipe.calibrate is None
    assert plan(open_checkpoint(KIMI_MINI), recipe).as_dict()["recipe"]["calibrate"] is None


def test_audit_compares_every_scale_with_the_recipe(made, halfbyte, tmp_path):
    code, printed, _ = halfbyte("audit", made, "--against", KIMI_MINI)
    assert code == 0
    assert "input scales of 1, the recipe's constant; no data required" in printed
    scale, info = next(
        (name, info) for name, info in open_checkpoint(made).tensors.items() if name.endswith(".input_scale")
    )
    path = made / info.shard
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[info.begin : info.end] = struct.pack("<f", 1.5)
    try:
        path.write_bytes(changed)
        code, printed, error = halfbyte("audit", made, "--against", KIMI_MINI)
    finally:
        path.write_bytes(whole)
    assert code == 1
    assert "1 of 480 input scales differs from the recipe's 1" in printed + error
    assert scale in printed + error


def test_activations_are_declared_as_quantized(made, halfbyte, tmp_path):
    """W4A16_NVFP4 would make engines ignore the scales; the audit reports it, also without the plan."""
    config = json.loads((made / "config.json").read_text())
    file = json.loads((made / "hf_quant_config.json").read_text())
    assert config["quantization_config"]["quant_algo"] == file["quantization"]["quant_algo"] == "NVFP4"
    shutil.copytree(made, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "halfbyte")
    assert halfbyte("audit", tmp_path / "out", "--against", KIMI_MINI)[0] == 0
    for name in ("config.json", "hf_quant_config.json"):
        path = tmp_path / "out" / name
        path.write_text(path.read_text().replace('"NVFP4"', '"W4A16_NVFP4"'))
    code, out, err = halfbyte("audit", tmp_path / "out")
    assert (code, "which ignores the stored input scales" in out + err) == (1, True)


def test_the_card_says_where_the_scales_are_from(made, halfbyte):
    assert halfbyte("card", made)[0] == 0
    card = (made / "README.md").read_text()
    assert "one stored FP32 scale per tensor (fixed at 1)" in card
    assert "and the input scales are fixed at 1" in card


def test_the_reciprocal_is_stored_in_compressed_tensors_spelling(tmp_path):
    sets = ["quantize.format=nvfp4_ct", "quantize.kv_cache=null", "quantize.input_scale.fixed=0.25"]
    kept = "re:.*(self_attn|shared_experts|layers[.]0[.]mlp|lm_head|vision|mm_projector).*"
    sets.append(f"quantize.config={{ignore_patterns: ['{kept}']}}")
    quantize(KIMI_MINI, tmp_path / "out", load_recipe(NAME, sets), layers=2)
    scales = input_scales(tmp_path / "out", ".input_global_scale")
    assert len(scales) == 32 * 3
    assert set(scales.values()) == {struct.pack("<f", 4.0)}


def test_statistics_and_data_are_refused(halfbyte, tmp_path):
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    command = ("quantize", KIMI_MINI, tmp_path / "out", "-r", NAME)
    assert halfbyte(*command, "--data", f"news={tmp_path / 'texts.jsonl'}")[0] == 2
    assert halfbyte(*command, "--stats", tmp_path)[0] == 2
    assert not (tmp_path / "out").exists()
