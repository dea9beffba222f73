"""A checkpoint with one defect does not start: the last line of vLLM's error names the module and the fix."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from broken import BROKEN, break_copy
from served_variants import make_variant

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """The result of loading each damaged checkpoint, by name, and of an intact one."""
    folder = tmp_path_factory.mktemp("damages")
    whole = make_variant("nvfp4-two-layers", folder)
    jobs = [{"name": "whole", "folder": str(break_copy(whole, folder / "whole", lambda tensors, config: None))}]
    for at, (name, (edit, _)) in enumerate(BROKEN.items()):
        jobs.append({"name": name, "folder": str(break_copy(whole, folder / str(at), edit))})
    jobs.append({"name": "dummy", "folder": str(whole), "options": {"load_format": "dummy"}})
    jobs.append({"name": "switch", "folder": str(whole), "activations": "never"})
    (folder / "jobs.json").write_text(json.dumps([{"kind": "load", **job} for job in jobs]))
    script = Path(__file__).with_name("emulated_jobs.py")
    done = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return {job["name"]: torch.load(folder / f"{job['name']}.pt") for job in jobs}


def test_a_whole_one_is_loaded(loaded):
    assert "error" not in loaded["whole"], loaded["whole"]
    parts = ("0.mlp.gate_up_proj", "0.mlp.down_proj", "1.mlp.shared_experts.gate_up_proj")
    wanted = {f"language_model.model.layers.{part}" for part in (*parts, "1.mlp.shared_experts.down_proj")}
    assert set(loaded["whole"]["quantized"]) == {*wanted, "language_model.model.layers.1.mlp.experts"}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said(loaded, name):
    line = loaded[name].get("error", "it was loaded")
    assert line.startswith("halfbyte.errors.CheckpointError: ")
    assert re.search(BROKEN[name][1], line), line
    assert "; fix: " in line


def test_what_no_loader_brought_is_missed(loaded):
    assert re.search("vLLM never loaded its weight .*would compute with uninitialized memory", loaded["dummy"]["error"])


def test_an_unknown_word_in_the_environment(loaded):
    assert "HALFBYTE_EMULATE_ACTIVATIONS is 'never'" in loaded["switch"]["error"]
