"""`audit --engine vllm` on a really written checkpoint: its names are those of the plan, and vLLM loads them."""

import json

import pytest
from checkpoints import planned, recipe_of, stored
from pico import write_pico

from halfbyte.checkpoint.folder import open_checkpoint
from halfbyte.engine.pipeline import quantize

SHAPE = {"hidden": 256, "expert_width": 64}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("engine")
    source = write_pico(root / "source", **SHAPE)
    quantize(source, root / "out", recipe_of("mxfp4 quark"))
    return source, root / "out"


def test_a_plan_has_the_names_that_are_written(folders):
    source, out = folders
    promised, written = planned(open_checkpoint(source), recipe_of("mxfp4 quark")), stored(open_checkpoint(out))
    assert sorted(promised["tensors"]) == sorted(written["tensors"])
    assert promised["config"] == written["config"]
    assert promised["modelopt_file"] == written["modelopt_file"]


def test_a_list_that_forgets_the_shared_experts_fails_the_audit(folders, halfbyte):
    _, out = folders
    config = json.loads((out / "config.json").read_text())
    block = config["quantization_config"]
    block["exclude"] = [pattern for pattern in block["exclude"] if "shared" not in pattern]
    (out / "config.json").write_text(json.dumps(config))
    code, shown, said = halfbyte("audit", out, "--engine", "vllm")
    assert code == 1
    (line,) = [line for line in (shown + said).splitlines() if "vLLM fails" in line]
    assert "shared_experts" in line
